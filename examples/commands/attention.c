/* A backend in C, without libraries: softmax(QK'/sqrt(d))V in float32.
 *
 * cc -O2 -o attention attention.c -lm
 * attnspec check --command ./attention
 */

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    long dims, shape[8], size;
    void *numbers; /* NULL: the argument is null */
} Array;

/* The array that the request describes under a name. Arrays must be read in the order of the request. */
static Array read_array(const char *request, const char *name, size_t width) {
    Array x = {0, {0}, 1, NULL};
    char key[64];
    snprintf(key, sizeof key, "\"%s\":{", name);
    const char *at = strstr(request, key);
    if (at == NULL) return x;
    at = strstr(at, "\"shape\":[") + strlen("\"shape\":[");
    while (*at != ']') {
        char *end;
        x.shape[x.dims] = strtol(at, &end, 10);
        x.size *= x.shape[x.dims++];
        at = *end == ',' ? end + 1 : end;
    }
    x.numbers = malloc(x.size * width + 1); /* not NULL, even if the array is empty */
    if (fread(x.numbers, width, x.size, stdin) != (size_t)x.size) exit(1);
    return x;
}

static void attend(const float *query, const float *key, const float *value, const bool *allowed, bool causal,
                   float *output, long n, long m, long d, long e) {
    float *weights = malloc((m + 1) * sizeof(float));
    for (long i = 0; i < n; i++) {
        float largest = -INFINITY, total = 0;
        for (long j = 0; j < m; j++) {
            weights[j] = 0;
            for (long c = 0; c < d; c++) weights[j] += query[i * d + c] * key[j * d + c];
            weights[j] /= sqrtf(d);
            if ((allowed && !allowed[i * m + j]) || (causal && j > i)) weights[j] = -INFINITY;
            if (!(weights[j] <= largest)) largest = weights[j]; /* also true for NaN */
        }
        for (long c = 0; c < e; c++) output[i * e + c] = 0;
        for (long j = 0; j < m; j++) {
            if (weights[j] == -INFINITY) continue;
            float weight = expf(weights[j] - largest);
            total += weight;
            for (long c = 0; c < e; c++) output[i * e + c] += weight * value[j * e + c];
        }
        for (long c = 0; c < e && total != 0; c++) output[i * e + c] /= total;
    }
    free(weights);
}

int main(void) {
    /* No batches, so that every array is a matrix; shapes that do not match are the caller's errors. */
    printf("{\"attnspec\":1,\"name\":\"c\",\"operations\":[\"scaled_dot_product_attention\"],"
           "\"limits\":{\"dtypes\":[\"float32\"],\"max_batch_dims\":0},\"semantics\":{\"rejection\":\"unchecked\"}}\n");
    fflush(stdout);
    char *request = NULL;
    size_t room = 0;
    while (getline(&request, &room, stdin) > 0) {
        Array query = read_array(request, "query", sizeof(float)), key = read_array(request, "key", sizeof(float));
        Array value = read_array(request, "value", sizeof(float)), mask = read_array(request, "mask", sizeof(bool));
        long n = query.shape[0], m = key.shape[0], d = query.shape[1], e = value.shape[1];
        float *output = malloc(n * e * sizeof(float) + 1);
        bool *allowed = mask.numbers ? malloc(n * m + 1) : NULL;
        /* A mask of one row or one column broadcasts. */
        for (long i = 0; i < n && allowed; i++)
            for (long j = 0; j < m; j++)
                allowed[i * m + j] = ((bool *)mask.numbers)[(mask.shape[0] == 1 ? 0 : i) * mask.shape[1] +
                                                            (mask.shape[1] == 1 ? 0 : j)];
        attend(query.numbers, key.numbers, value.numbers, allowed, strstr(request, "\"causal\":true") != NULL, output,
               n, m, d, e);
        printf("{\"result\":{\"result\":{\"dtype\":\"float32\",\"shape\":[%ld,%ld]}}}\n", n, e);
        fwrite(output, sizeof(float), n * e, stdout);
        fflush(stdout);
        free(query.numbers), free(key.numbers), free(value.numbers), free(mask.numbers), free(output), free(allowed);
    }
    return 0;
}
