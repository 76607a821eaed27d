//! A backend in Rust, without crates: scores QK' of matrices in float64, with gradients.
//!
//! rustc -O --edition 2021 -o scores scores.rs
//! attnspec check --command ./scores

use std::io::{self, BufRead, Read, Write};

struct Matrix {
    shape: [usize; 2],
    numbers: Vec<f64>,
}

impl Matrix {
    fn zeros(rows: usize, columns: usize) -> Matrix {
        Matrix { shape: [rows, columns], numbers: vec![0.0; rows * columns] }
    }

    /// Reads the matrix that the request describes under a name; its bytes come next.
    fn read(request: &str, name: &str, input: &mut impl Read) -> io::Result<Matrix> {
        let described = request.split(&format!("\"{name}\":{{")).nth(1).expect(name);
        let text = described.split("\"shape\":[").nth(1).expect("a shape").split(']').next().unwrap();
        let sizes: Vec<usize> = text.split(',').map(|size| size.trim().parse().expect("a size")).collect();
        let mut bytes = vec![0; sizes[0] * sizes[1] * 8];
        input.read_exact(&mut bytes)?;
        let numbers = bytes.chunks(8).map(|number| f64::from_le_bytes(number.try_into().unwrap())).collect();
        Ok(Matrix { shape: [sizes[0], sizes[1]], numbers })
    }

    /// Sums term(i, j, k) over k, for every row i and column j.
    fn sums(rows: usize, columns: usize, terms: usize, term: impl Fn(usize, usize, usize) -> f64) -> Matrix {
        let mut result = Matrix::zeros(rows, columns);
        for i in 0..rows {
            for j in 0..columns {
                result.numbers[i * columns + j] = (0..terms).map(|k| term(i, j, k)).sum();
            }
        }
        result
    }

    fn at(&self, row: usize, column: usize) -> f64 {
        self.numbers[row * self.shape[1] + column]
    }
}

fn answer(results: &[(&str, Matrix)], output: &mut impl Write) -> io::Result<()> {
    let described: Vec<String> = results
        .iter()
        .map(|(name, x)| format!("\"{name}\":{{\"dtype\":\"float64\",\"shape\":[{},{}]}}", x.shape[0], x.shape[1]))
        .collect();
    writeln!(output, "{{\"result\":{{{}}}}}", described.join(","))?;
    for number in results.iter().flat_map(|(_, x)| &x.numbers) {
        output.write_all(&number.to_le_bytes())?;
    }
    output.flush()
}

fn main() -> io::Result<()> {
    let (mut input, mut output) = (io::stdin().lock(), io::stdout().lock());
    writeln!(
        output,
        "{{\"attnspec\":1,\"name\":\"rust\",\"operations\":[\"dot_scores\"],\"vjp\":true,\
         \"limits\":{{\"dtypes\":[\"float64\"],\"max_batch_dims\":0}},\
         \"semantics\":{{\"rejection\":\"unchecked\"}}}}"
    )?;
    output.flush()?;
    let mut request = String::new();
    while input.read_line(&mut request)? > 0 {
        let (q, k) = (Matrix::read(&request, "query", &mut input)?, Matrix::read(&request, "key", &mut input)?);
        let ([n, d], [m, _]) = (q.shape, k.shape);
        if request.starts_with("{\"vjp\"") {
            let g = Matrix::read(&request, "result", &mut input)?;
            let query = Matrix::sums(n, d, m, |i, c, j| g.at(i, j) * k.at(j, c));
            let key = Matrix::sums(m, d, n, |j, c, i| g.at(i, j) * q.at(i, c));
            answer(&[("query", query), ("key", key)], &mut output)?;
        } else {
            let scores = Matrix::sums(n, m, d, |i, j, c| q.at(i, c) * k.at(j, c));
            answer(&[("result", scores)], &mut output)?;
        }
        request.clear();
    }
    Ok(())
}
