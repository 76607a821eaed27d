(** The rigorous error bound of scaled dot-product attention: [rigorous.py] computes it, and
    [tests/reference/test_proved_bound.py] compares the two. *)
From Coq Require Import Reals List Lra Lia Permutation.
From attnspec Require Import Sums Rounding Pooling.
Import ListNotations.
Open Scope R_scope.

Definition maximum (f : nat -> R) (l : list nat) : R :=
  match l with [] => 0 | x :: t => fold_right (fun y r => Rmax (f y) r) (f x) t end.

Definition expm1 (x : R) : R := exp x - 1.

Lemma maximum_ge f l x : In x l -> f x <= maximum f l.
Proof.
  destruct l as [|y l]; [simpl; tauto|]. unfold maximum. intros I.
  assert (G : forall t b, (b <= fold_right (fun z r => Rmax (f z) r) b t) /\
    (forall z, In z t -> f z <= fold_right (fun z r => Rmax (f z) r) b t)).
  { induction t as [|z t IH]; intros b; simpl; [split; [lra|tauto]|]. destruct (IH b) as [B T]. split.
    - eapply Rle_trans; [exact B|]. apply Rmax_r.
    - intros z' [->|I']; [apply Rmax_l|]. eapply Rle_trans; [apply T, I'|]. apply Rmax_r. }
  destruct (G l (f y)) as [B T]. destruct I as [->|I]; auto.
Qed.

Lemma maximum_in f l : l <> [] -> exists x, In x l /\ maximum f l = f x.
Proof.
  destruct l as [|y l]; [congruence|]. intros _. unfold maximum. induction l as [|z l IH]; simpl in *.
  - exists y. auto.
  - destruct IH as [x [I E]]. unfold Rmax at 1. destruct (Rle_dec (f z) _) as [L|L].
    + exists x. rewrite E. split; [tauto|reflexivity].
    + exists z. tauto.
Qed.

Lemma choose (P : nat -> R -> Prop) (l : list nat) :
  (forall j, In j l -> exists y, P j y) -> exists f, forall j, In j l -> P j (f j).
Proof.
  induction l as [|x l IH]; intros H; [exists (fun _ => 0); simpl; tauto|].
  destruct IH as [f F]; [intros; apply H; simpl; auto|]. destruct (H x (or_introl eq_refl)) as [y Y].
  exists (fun j => if Nat.eq_dec j x then y else f j). intros j [->|I].
  - destruct (Nat.eq_dec j j); [auto|congruence].
  - destruct (Nat.eq_dec j x) as [->|]; auto.
Qed.

Lemma rounded_split a b x y : 0 < x -> 0 <= a -> 0 <= b -> rounded a b x y ->
  exists e z, Rabs e <= a /\ Rabs z <= b /\ y = x * (1 + e) + z.
Proof.
  unfold rounded. intros X A B H. rewrite (Rabs_pos_eq x) in H by lra. apply Rabs_le_inv in H.
  destruct (Rle_dec (y - x) (a * x)) as [U|U]; [destruct (Rle_dec (- (a * x)) (y - x)) as [L|L]|].
  - exists ((y - x) / x), 0. rewrite Rabs_R0. repeat split; auto; [|field; lra].
    unfold Rdiv. rewrite Rabs_mult, (Rabs_pos_eq (/ x)) by (left; apply Rinv_0_lt_compat, X).
    apply Rmult_le_reg_r with x; [auto|]. rewrite Rmult_assoc, Rinv_l by lra.
    rewrite Rmult_1_r. apply Rabs_le. lra.
  - exists (- a), (y - x + a * x). repeat split; [rewrite Rabs_Ropp, Rabs_pos_eq; lra | apply Rabs_le; lra | ring].
  - exists a, (y - x - a * x). repeat split; [rewrite Rabs_pos_eq; lra | apply Rabs_le; lra | ring].
Qed.

Lemma ln_bound e a : Rabs e <= a -> a <= 1 / 16 -> Rabs (ln (1 + e)) <= 16 / 15 * a.
Proof.
  intros H S. apply Rabs_le_inv in H. assert (L : forall x, 0 < x -> ln x <= x - 1).
  { intros x X. pose proof (exp_ineq1_le (ln x)) as E. rewrite exp_ln in E by auto. lra. }
  apply Rabs_le. split.
  - assert (N : - ln (1 + e) <= 16 / 15 * a); [|lra]. rewrite <- ln_Rinv by lra.
    eapply Rle_trans; [apply L, Rinv_0_lt_compat; lra|].
    apply Rmult_le_reg_r with (1 + e); [lra|]. rewrite Rmult_minus_distr_r, Rinv_l by lra.
    assert (16 / 15 * a * (15 / 16) <= 16 / 15 * a * (1 + e)); [|lra]. apply Rmult_le_compat_l; lra.
  - eapply Rle_trans; [apply L; lra|]. lra.
Qed.

Lemma shared_error a c l lambda : 0 < a <= 1 -> a <= c <= / a -> Rabs l <= lambda ->
  Rabs (c * (1 + l) - 1) <= (1 + lambda) / a - 1.
Proof.
  intros [A A1] [C C'] H. replace (c * (1 + l) - 1) with ((c - 1) + c * l) by ring.
  assert (I : a * / a = 1) by (apply Rinv_r; lra).
  assert (1 <= / a) by (rewrite <- Rinv_1; apply Rinv_le_contravar; lra).
  assert (Rabs (c - 1) <= / a - 1) by (apply Rabs_le; split; nra).
  assert (Rabs (c * l) <= / a * lambda).
  { rewrite Rabs_mult, (Rabs_pos_eq c) by lra. apply Rmult_le_compat; try lra. apply Rabs_pos. }
  eapply Rle_trans; [apply Rabs_triang|]. unfold Rdiv. lra.
Qed.

Section Attention.
(** The precision class: unit roundoffs and absolute errors near 0 of the accumulation, the weights, the result. *)
Variables (u smallest omega weights_smallest output output_smallest : R).
(** A relative error that all weights of a row share, such as that of a rounded logarithm of their sum. *)
Variable lambda : R.
(** One query q, m keys k, one coordinate v of the values. A lists the attendable keys, [masked] those that a kernel may
    include with weight 0. *)
Variables (d m : nat) (q : nat -> R) (k : nat -> nat -> R) (v : nat -> R) (A masked : list nat).

(** * The exact result *)

Definition score (j : nat) : R := sum (fun c => q c * k j c) (seq 0 d) / sqrt (INR d).
Definition highest : R := maximum score A.
Definition shifted (j : nat) : R := score j - highest.
Definition alpha (j : nat) : R := exp (shifted j) / sum (fun i => exp (shifted i)) A.
Definition o : R := sum (fun j => alpha j * v j) A.

(** * The bound *)

Definition magnitude (j : nat) : R := sum (fun c => Rabs (q c * k j c)) (seq 0 d).
Definition dot_error (j : nat) : R := growth u (d + 1) * magnitude j + (INR d + 1) * smallest.
Definition score_error (j : nat) : R :=
  dot_error j / sqrt (INR d) + 3 * u * (Rabs (score j) + dot_error j / sqrt (INR d)) + smallest.
Definition largest_error : R := maximum score_error A.
Definition delta (j : nat) : R := score_error j + 3 * u * Rabs (shifted j) + 6 * u * (1 + largest_error).
Definition least_sum : R := sum (fun j => alpha j * exp (- delta j)) A.
Definition factor (j : nat) : R := alpha j * expm1 (delta j) / least_sum.
Definition spread : R := sum (fun j => factor j * ((v j - o) * (v j - o))) A.
Definition farthest : R := maximum (fun j => Rabs (v j - o)) A.
Definition weighting : R := Rmin (sqrt (sum factor A * spread)) farthest.
Definition mass : R :=
  Rmin (sum (fun j => alpha j * Rabs (v j)) A / least_sum + sum (fun j => factor j * Rabs (v j)) A)
    (maximum (fun j => Rabs (v j)) A).
Definition lost : R := omega + 4 * INR m * weights_smallest.
Definition common : R := (lambda + growth u (m + 2) + lambda * growth u (m + 2) + lost) / (1 - lost).
Definition roundings : R := growth u (m + 2) + omega + omega * growth u (m + 2).
Definition underflow : R :=
  4 * (1 + roundings) * (INR m * smallest + weights_smallest * sum (fun j => Rabs (v j)) A).
Definition bound : R :=
  weighting + common * (Rabs o + weighting) + (1 + common) * (roundings * mass + underflow).
Definition result_bound : R := bound + output * (Rabs o + bound) + 4 * output_smallest.

(** * What a kernel may compute *)

(** An order of summation over the attendable keys and any masked ones, whose weights are 0. *)
Definition over_keys (t : order) : Prop :=
  exists others, incl others masked /\ Permutation (terms t) (A ++ others) /\ (length (terms t) <= m)%nat.

(** Scores e in any order of summation, the scale applied to the product, or to the query if that does not underflow. *)
Inductive scores (e : nat -> R) : Prop :=
  | scaled_after : (forall j, In j A -> exists t r, Permutation (terms t) (seq 0 d) /\
      dot_product u smallest q (k j) t r /\ rounded (4 * u) smallest (r / sqrt (INR d)) (e j)) -> scores e
  | scaled_before q' l : Rabs l <= 3 * u ->
      (forall c, (c < d)%nat -> rounded u 0 (q c / sqrt (INR d) * (1 + l)) (q' c)) ->
      (forall j, In j A -> exists t, Permutation (terms t) (seq 0 d) /\
        dot_product u smallest q' (k j) t (e j)) -> scores e.

(** Scores e, a number M within 1/4 of the largest, and w = exp(e − M). Exponents may err by three roundings (the
    difference, log₂ e, a product), exponentials by four unit roundoffs. *)
Record exponentials (e : nat -> R) (M : R) (w : nat -> R) : Prop := {
  scores_computed : scores e;
  near_the_maximum : Rabs (M - maximum e A) <= 1 / 4;
  exponentials_computed : forall j, In j A -> exists x, rounded (3 * u) (3 * smallest) (e j - M) x /\
    0 <= w j /\ rounded (4 * u) smallest (exp x) (w j);
  masked_exponentials : forall j, In j masked -> w j = 0 }.

(** Weights as stored, before they multiply values. *)
Record stored (w w' : nat -> R) : Prop := {
  weights_stored : forall j, In j A -> rounded omega weights_smallest (w j) (w' j);
  masked_stored : forall j, In j masked -> w' j = 0 }.

(** y is the exact quotient x with n roundings and the relative error l that a row shares. *)
Definition quotient (n : nat) (l x y : R) : Prop :=
  exists f z, (1 - u) ^ n <= f <= / (1 - u) ^ n /\ Rabs z <= smallest /\ y = x * f * (1 + l) + z.

(** y is a result of attention. A kernel divides by the sum of the weights after it has pooled the values, or before. *)
Inductive kernel : R -> Prop :=
  | divides_after e M w w' sum_of tN tD N D l y :
      exponentials e M w -> stored w w' -> (forall j, In j A -> 0 <= w' j) ->
      (sum_of = w \/ sum_of = w') -> over_keys tD -> total u sum_of tD D ->
      over_keys tN -> dot_product u smallest w' v tN N ->
      Rabs l <= lambda -> quotient 3 l (N / D) y -> kernel y
  | divides_before e M w a a' tN tD D l y :
      exponentials e M w -> over_keys tD -> total u w tD D ->
      Rabs l <= lambda -> (forall j, In j A -> quotient 2 l (w j / D) (a j)) -> stored a a' ->
      over_keys tN -> dot_product u smallest a' v tN y -> kernel y.

(** * Proofs *)

Hypothesis u_pos : 0 < u.
Hypothesis u_small : u <= 1 / 64.
Hypothesis smallest_pos : 0 <= smallest.
Hypothesis smallest_below : smallest <= weights_smallest.
Hypothesis omega_pos : 0 <= omega.
Hypothesis omega_small : omega <= 1 / 2.
Hypothesis lambda_pos : 0 <= lambda.
Hypothesis lost_small : lost < 1.
Hypothesis features : (1 <= d)%nat.
Hypothesis no_underflow_of_scores : 32 * INR d * smallest * (1 + growth u d) <= u.
Hypothesis attendable : A <> [].

Let g n := growth u n.

Lemma g_nonneg n : 0 <= g n.
Proof. apply growth_nonneg; lra. Qed.

Lemma INR_features : 1 <= INR d.
Proof. change 1 with (INR 1). apply le_INR, features. Qed.

Lemma root_features : 1 <= sqrt (INR d).
Proof. rewrite <- sqrt_1. apply sqrt_le_1_alt, INR_features. Qed.

Lemma smallest_small : smallest <= u / 32.
Proof. pose proof INR_features. pose proof (g_nonneg d) as G. unfold g in G. assert (0 <= smallest * (INR d * (1 + growth u d) - 1)); [|lra]. apply Rmult_le_pos; nra. Qed.

Lemma magnitude_nonneg j : 0 <= magnitude j.
Proof. apply sum_nonneg. intros. apply Rabs_pos. Qed.

Lemma dot_error_nonneg j : 0 <= dot_error j.
Proof.
  unfold dot_error. pose proof (g_nonneg (d + 1)) as G. unfold g in G. pose proof (magnitude_nonneg j). pose proof INR_features.
  apply Rplus_le_le_0_compat; apply Rmult_le_pos; lra.
Qed.

Lemma score_error_nonneg j : 0 <= score_error j.
Proof.
  unfold score_error. pose proof root_features. pose proof (dot_error_nonneg j).
  assert (0 <= dot_error j / sqrt (INR d)) by (unfold Rdiv; apply Rmult_le_pos; [auto|left; apply Rinv_0_lt_compat; lra]).
  pose proof (Rabs_pos (score j)). assert (0 <= 3 * u * (Rabs (score j) + dot_error j / sqrt (INR d))) by (apply Rmult_le_pos; lra). lra.
Qed.

Lemma scores_near e j : scores e -> In j A -> Rabs (e j - score j) <= score_error j + u / 12.
Proof.
  intros Sc I. pose proof root_features as Rt. pose proof INR_features as Nd. assert (U0 : 0 <= u) by lra.
  pose proof (rise_le_growth u U0 u_small (d + 1)) as G1. pose proof (rise_le_growth u U0 u_small d) as G.
  pose proof (rise_ge_1 u U0 d) as R1. pose proof (magnitude_nonneg j) as Mj.
  pose proof (g_nonneg d) as Gd. pose proof (g_nonneg (d + 1)) as Gd1. unfold g in Gd, Gd1.
  set (s := sum (fun c => q c * k j c) (seq 0 d)) in *.
  assert (Sm : Rabs s <= magnitude j) by apply sum_abs.
  assert (E : score j = s / sqrt (INR d)) by reflexivity. unfold score_error. rewrite E. set (root := sqrt (INR d)) in *.
  assert (IR : 0 < / root <= 1).
  { split; [apply Rinv_0_lt_compat; lra|]. rewrite <- Rinv_1. apply Rinv_le_contravar; lra. }
  set (rise := (1 + u) ^ d) in *. replace (d + 1)%nat with (S d) in * by lia. simpl pow in G1. fold rise in G1.
  set (U := (2 * INR d - 1) * (smallest * rise)).
  assert (HU : 0 <= U <= u / 16).
  { unfold U. split; [apply Rmult_le_pos; [lra|apply Rmult_le_pos; lra]|].
    apply Rle_trans with (2 * INR d * (smallest * (1 + growth u d))); [|lra].
    apply Rmult_le_compat; try lra; [apply Rmult_le_pos; lra|]. apply Rmult_le_compat_l; lra. }
  assert (De : growth u (S d) * magnitude j <= dot_error j).
  { unfold dot_error. replace (d + 1)%nat with (S d) by lia.
    assert (0 <= (INR d + 1) * smallest) by (apply Rmult_le_pos; lra). lra. }
  assert (DeR : growth u (S d) * (magnitude j * / root) <= dot_error j / root).
  { unfold Rdiv. rewrite <- Rmult_assoc. apply Rmult_le_compat_r; lra. }
  set (mr := magnitude j * / root) in *.
  assert (Mr : 0 <= mr) by (apply Rmult_le_pos; lra).
  assert (Sr : Rabs (s / root) <= mr).
  { unfold Rdiv, mr. rewrite Rabs_mult, (Rabs_pos_eq (/ root)) by lra. apply Rmult_le_compat_r; lra. }
  assert (U2 : u * (u / 16) <= 1 / 64 * (u / 16)) by (apply Rmult_le_compat_r; lra).
  destruct Sc as [H|q' l L Q H].
  - destruct (H j I) as [t [r [P [D Rd]]]].
    pose proof (dot_product_error u smallest U0 smallest_pos _ _ _ _ D) as Dp. cbv zeta in Dp.
    rewrite !(sum_permutation _ _ _ P), (Permutation_length P), seq_length in Dp. fold (magnitude j) s rise U in Dp.
    set (err := (rise - 1) * mr + U).
    assert (Y : Rabs (r / root - s / root) <= err).
    { replace (r / root - s / root) with ((r - s) * / root) by (field; lra).
      rewrite Rabs_mult, (Rabs_pos_eq (/ root)) by lra.
      apply Rle_trans with (((rise - 1) * magnitude j + U) * / root); [apply Rmult_le_compat_r; lra|].
      assert (U * / root <= U * 1) by (apply Rmult_le_compat_l; lra). unfold err, mr. lra. }
    pose proof (rounded_error (4 * u) smallest ltac:(lra) _ _ _ _ _ Rd Y (Rle_refl _)) as Z.
    eapply Rle_trans; [exact Z|].
    assert (X1 : err + u * (Rabs (s / root) + err) <= dot_error j / root + (1 + u) * U).
    { assert (u * Rabs (s / root) <= u * mr) by (apply Rmult_le_compat_l; lra).
      assert (((1 + u) * rise - 1) * mr <= growth u (S d) * mr) by (apply Rmult_le_compat_r; lra).
      unfold err in *. lra. }
    assert (X2 : err <= dot_error j / root + U).
    { assert (0 <= u * rise) by (apply Rmult_le_pos; lra). assert (rise <= (1 + u) * rise) by lra.
      assert ((rise - 1) * mr <= growth u (S d) * mr) by (apply Rmult_le_compat_r; lra). unfold err. lra. }
    assert (X3 : 3 * u * (Rabs (s / root) + err) <= 3 * u * (Rabs (s / root) + (dot_error j / root + u / 16))) by (apply Rmult_le_compat_l; lra).
    assert (X4 : (1 + u) * U <= (1 + u) * (u / 16)) by (apply Rmult_le_compat_l; lra). lra.
  - destruct (H j I) as [t [P D]].
    pose proof (dot_product_error u smallest U0 smallest_pos _ _ _ _ D) as Dp. cbv zeta in Dp.
    rewrite !(sum_permutation _ _ _ P), (Permutation_length P), seq_length in Dp. fold rise U in Dp.
    pose proof (Rabs_le_inv _ _ L) as L'.
    assert (Qc : forall c, In c (seq 0 d) -> Rabs (q' c - q c / root * (1 + l)) <= u * (Rabs (q c) * / root * (1 + l))).
    { intros c Ic. apply in_seq in Ic. pose proof (Q c ltac:(lia)) as Qc. unfold rounded in Qc. fold root in Qc. rewrite Rplus_0_r in Qc.
      eapply Rle_trans; [exact Qc|]. right. unfold Rdiv. rewrite !Rabs_mult, (Rabs_pos_eq (/ root)), (Rabs_pos_eq (1 + l)) by lra. reflexivity. }
    assert (S1 : Rabs (sum (fun c => q' c * k j c) (seq 0 d) - s / root * (1 + l)) <= u * (mr * (1 + l))).
    { replace (s / root * (1 + l)) with (/ root * (1 + l) * s) by (unfold Rdiv; ring).
      replace (u * (mr * (1 + l))) with (u * / root * (1 + l) * magnitude j) by (unfold mr; ring).
      unfold s, magnitude. rewrite <- !sum_scal, <- sum_minus. eapply Rle_trans; [apply sum_abs|].
      apply sum_le. intros c Ic. pose proof (Qc c Ic).
      replace (q' c * k j c - / root * (1 + l) * (q c * k j c)) with ((q' c - q c / root * (1 + l)) * k j c) by (unfold Rdiv; ring).
      rewrite !Rabs_mult. eapply Rle_trans; [apply Rmult_le_compat_r; [apply Rabs_pos|eassumption]|]. right. ring. }
    assert (S2 : sum (fun c => Rabs (q' c * k j c)) (seq 0 d) <= (1 + u) * (mr * (1 + l))).
    { replace ((1 + u) * (mr * (1 + l))) with ((1 + u) * / root * (1 + l) * magnitude j) by (unfold mr; ring).
      unfold magnitude. rewrite <- sum_scal. apply sum_le. intros c Ic. pose proof (Qc c Ic) as B.
      rewrite !Rabs_mult.
      assert (B' : Rabs (q' c) <= (1 + u) * / root * (1 + l) * Rabs (q c)).
      { replace (q' c) with ((q' c - q c / root * (1 + l)) + q c / root * (1 + l)) by ring.
        eapply Rle_trans; [apply Rabs_triang|].
        assert (Rabs (q c / root * (1 + l)) = Rabs (q c) * / root * (1 + l)).
        { unfold Rdiv. rewrite !Rabs_mult, (Rabs_pos_eq (/ root)), (Rabs_pos_eq (1 + l)) by lra. reflexivity. }
        lra. }
      rewrite <- Rmult_assoc. apply Rmult_le_compat_r; [apply Rabs_pos|exact B']. }
    assert (S3 : (rise - 1) * sum (fun c => Rabs (q' c * k j c)) (seq 0 d) <= (rise - 1) * ((1 + u) * (mr * (1 + l)))) by (apply Rmult_le_compat_l; lra).
    replace (e j - s / root) with ((e j - sum (fun c => q' c * k j c) (seq 0 d)) + (sum (fun c => q' c * k j c) (seq 0 d) - s / root * (1 + l)) + s / root * l) by ring.
    eapply Rle_trans; [apply Rabs_triang|]. eapply Rle_trans; [apply Rplus_le_compat_r, Rabs_triang|].
    rewrite (Rabs_mult (s / root)).
    assert (S4 : Rabs (s / root) * Rabs l <= Rabs (s / root) * (3 * u)) by (apply Rmult_le_compat_l; [apply Rabs_pos|auto]).
    set (ml := mr * (1 + l)) in *.
    assert (Ml : 0 <= ml) by (apply Rmult_le_pos; lra).
    assert (S5 : ((1 + u) * rise - 1) * ml <= growth u (S d) * ml) by (apply Rmult_le_compat_r; lra).
    assert (S6 : growth u (S d) * ml <= (1 + 3 * u) * (growth u (S d) * mr)).
    { unfold ml. replace (growth u (S d) * (mr * (1 + l))) with ((1 + l) * (growth u (S d) * mr)) by ring.
      apply Rmult_le_compat_r; [apply Rmult_le_pos; auto|lra]. }
    assert (S7 : (1 + 3 * u) * (growth u (S d) * mr) <= (1 + 3 * u) * (dot_error j / root)) by (apply Rmult_le_compat_l; lra).
    lra.
Qed.

Lemma largest_error_nonneg : 0 <= largest_error.
Proof.
  destruct (maximum_in score_error A attendable) as [i [_ E]]. unfold largest_error. rewrite E. apply score_error_nonneg.
Qed.

Section Exponentials.
Variables (e : nat -> R) (M : R) (w : nat -> R).
Hypothesis X : exponentials e M w.

Lemma exponents_near j : In j A -> Rabs (e j - M) <= Rabs (shifted j) + 2 * largest_error + u / 6 + 1 / 4.
Proof.
  intros I. pose proof (near_the_maximum _ _ _ X) as N. apply Rabs_le_inv in N.
  destruct (maximum_in e A attendable) as [i [Ii E]]. pose proof (maximum_ge e A j I) as G. rewrite E in *.
  pose proof (scores_near e j (scores_computed _ _ _ X) I) as Nj. pose proof (scores_near e i (scores_computed _ _ _ X) Ii) as Ni. apply Rabs_le_inv in Nj. apply Rabs_le_inv in Ni.
  pose proof (maximum_ge score_error A j I). pose proof (maximum_ge score_error A i Ii). fold largest_error in *.
  pose proof (maximum_ge score A i Ii) as Hs. fold highest in Hs.
  assert (S : - shifted j <= Rabs (shifted j)) by (rewrite <- Rabs_Ropp; apply Rle_abs).
  unfold shifted in *. apply Rabs_le. split; lra.
Qed.

Lemma perturbed : exists eta, 
  (forall j, In j A -> Rabs (eta j) <= delta j) /\
  (forall j, In j A -> Rabs (w j - exp (score j - M + eta j)) <= smallest) /\
  69 / 100 <= sum (fun j => exp (score j - M + eta j)) A.
Proof.
  destruct (choose (fun j y => Rabs y <= delta j /\ Rabs (w j - exp (score j - M + y)) <= smallest /\
    (e j = maximum e A -> 69 / 100 <= exp (score j - M + y))) A) as [eta H].
  - intros j I. destruct (exponentials_computed _ _ _ X j I) as [x [R [_ W]]].
    destruct (rounded_split (4 * u) smallest (exp x) (w j) (exp_pos x) ltac:(lra) smallest_pos W) as [ep [z [Hep [Hz E]]]].
    pose proof (ln_bound ep (4 * u) Hep ltac:(lra)) as L.
    assert (P : exp (x + ln (1 + ep)) = exp x * (1 + ep)).
    { apply Rabs_le_inv in Hep. rewrite exp_plus, exp_ln by lra. reflexivity. }
    exists (x - (e j - M) + (e j - score j) + ln (1 + ep)).
    replace (score j - M + (x - (e j - M) + (e j - score j) + ln (1 + ep))) with (x + ln (1 + ep)) by ring.
    rewrite P. pose proof smallest_small. unfold rounded in R. repeat split.
    + pose proof (exponents_near j I) as N. pose proof (scores_near e j (scores_computed _ _ _ X) I).
      assert (Rabs (x - (e j - M)) <= 3 * u * (Rabs (shifted j) + 2 * largest_error + u / 6 + 1 / 4) + 3 * smallest).
      { eapply Rle_trans; [exact R|]. apply Rplus_le_compat_r, Rmult_le_compat_l; lra. }
      assert (3 * u * (u / 6) <= 3 * u * (1 / 384)) by (apply Rmult_le_compat_l; lra).
      eapply Rle_trans; [apply Rabs_triang|]. eapply Rle_trans; [apply Rplus_le_compat_r, Rabs_triang|].
      unfold delta. lra.
    + rewrite E. replace (exp x * (1 + ep) + z - exp x * (1 + ep)) with z by ring. exact Hz.
    + intros Top. pose proof (near_the_maximum _ _ _ X) as N. rewrite <- Top in N.
      assert (N' : Rabs (e j - M) <= 1 / 4) by (rewrite Rabs_minus_sym; exact N).
      assert (3 * u * Rabs (e j - M) <= 3 * u * (1 / 4)) by (apply Rmult_le_compat_l; lra).
      apply Rabs_le_inv in N'. apply Rabs_le_inv in R. apply Rabs_le_inv in Hep.
      pose proof (exp_ineq1_le x).
      assert (736 / 1000 * (15 / 16) <= exp x * (1 + ep)); [|lra]. apply Rmult_le_compat; lra.
  - exists eta. split; [|split]; [intros; apply H; auto .. |].
    destruct (maximum_in e A attendable) as [i [I E]]. destruct (H i I) as [_ [_ T]].
    apply Rle_trans with (exp (score i - M + eta i)); [auto|].
    apply (sum_term (fun j => exp (score j - M + eta j))); auto. intros. left. apply exp_pos.
Qed.
End Exponentials.

(** ** From exponentials to the result *)

Lemma sum_over_keys t f : over_keys t -> (forall j, In j masked -> f j = 0) -> sum f (terms t) = sum f A.
Proof.
  intros [Z [I [P _]]] H. rewrite (sum_permutation _ _ _ P), sum_app, (sum_ext f (fun _ => 0) Z), sum_zero by auto. ring.
Qed.

Lemma over_keys_counts t : over_keys t -> (length A <= m)%nat /\ (1 <= m)%nat.
Proof.
  intros [Z [_ [P L]]]. rewrite (Permutation_length P), app_length in L.
  assert (length A <> 0)%nat by (destruct A; simpl; [congruence|lia]). lia.
Qed.

Lemma lost_nonneg : 0 <= lost.
Proof. unfold lost. pose proof (pos_INR m). assert (0 <= 4 * INR m * weights_smallest) by (apply Rmult_le_pos; lra). lra. Qed.

Lemma common_closed : common = (1 + lambda) / ((1 - lost) * (1 - u) ^ (m + 2)) - 1.
Proof.
  pose proof (shrink_pos u u_small (m + 2)). unfold common, growth. field. lra.
Qed.

Lemma common_nonneg : 0 <= common.
Proof.
  unfold common. pose proof lost_nonneg. pose proof (g_nonneg (m + 2)) as G. unfold g in G.
  assert (0 <= lambda * growth u (m + 2)) by (apply Rmult_le_pos; auto).
  apply Rmult_le_pos; [lra|]. left. apply Rinv_0_lt_compat. lra.
Qed.

Lemma roundings_closed : 1 + roundings = (1 + growth u m) * (1 + growth u 2) * (1 + omega).
Proof. rewrite growth_plus. unfold roundings. ring. Qed.

(** Exponentials p that have only relative errors, computed exponentials w within [smallest] of them, and the values
    that p pools: o'. *)
Section Weights.
Variables (p w : nat -> R).
Hypothesis p_pos : forall j, In j A -> 0 < p j.
Hypothesis w_near : forall j, In j A -> Rabs (w j - p j) <= smallest.
Hypothesis w_nonneg : forall j, In j A -> 0 <= w j.
Hypothesis w_masked : forall j, In j masked -> w j = 0.
Let P := sum p A.
Hypothesis P_large : 69 / 100 <= P.
Let o' := sum (fun j => p j / P * v j) A.
Let mass' := sum (fun j => p j / P * Rabs (v j)) A.
Let values := sum (fun j => Rabs (v j)) A.

Lemma values_nonneg : 0 <= values.
Proof. apply sum_nonneg. intros. apply Rabs_pos. Qed.

Lemma mass'_nonneg : 0 <= mass'.
Proof.
  apply sum_nonneg. intros j I. apply Rmult_le_pos; [|apply Rabs_pos]. pose proof (p_pos j I).
  unfold Rdiv. apply Rmult_le_pos; [lra|]. left. apply Rinv_0_lt_compat. lra.
Qed.

Lemma P_inverse : 0 < / P <= 29 / 20.
Proof.
  split; [apply Rinv_0_lt_compat; lra|]. apply Rle_trans with (/ (69 / 100)); [apply Rinv_le_contravar; lra|lra].
Qed.

Lemma stored_near w' j : stored w w' -> In j A ->
  Rabs (w' j - p j) <= omega * p j + 5 / 2 * weights_smallest.
Proof.
  intros S I. pose proof (weights_stored _ _ S j I) as H. unfold rounded in H. rewrite (Rabs_pos_eq (w j)) in H by auto.
  pose proof (w_near j I) as N. apply Rabs_le_inv in H. apply Rabs_le_inv in N.
  assert (omega * w j <= omega * (p j + smallest)) by (apply Rmult_le_compat_l; lra).
  assert (omega * smallest <= 1 / 2 * smallest) by (apply Rmult_le_compat_r; lra).
  apply Rabs_le. split; lra.
Qed.

Lemma sum_of_weights x t D : over_keys t -> (x = w \/ exists w', x = w' /\ stored w w' /\ (forall j, In j A -> 0 <= w' j)) ->
  total u x t D ->
  let a := (1 - lost) * (1 - u) ^ (m - 1) in a * P <= D <= / a * P.
Proof.
  intros K S T. cbv zeta. destruct (over_keys_counts t K) as [LA L1].
  assert (U0 : 0 <= u) by lra.
  assert (Nx : forall j, In j A -> 0 <= x j /\ Rabs (x j - p j) <= omega * p j + 5 / 2 * weights_smallest).
  { intros j I. destruct S as [->|[w' [-> [S Pw]]]].
    - split; auto. pose proof (w_near j I). pose proof (p_pos j I).
      assert (0 <= omega * p j) by (apply Rmult_le_pos; lra). lra.
    - split; auto. apply stored_near; auto. }
  assert (Zx : forall j, In j masked -> x j = 0).
  { intros j I. destruct S as [->|[w' [-> [S _]]]]; auto. apply (masked_stored _ _ S j I). }
  assert (In_terms : forall j, In j (terms t) -> 0 <= x j).
  { destruct K as [Z [Iz [Pt _]]]. intros j I. apply (Permutation_in j Pt), in_app_or in I.
    destruct I as [I|I]; [apply Nx, I|]. rewrite Zx; [lra|auto]. }
  pose proof (total_error u U0 u_small x t D In_terms T) as H. cbv zeta in H.
  rewrite (sum_over_keys t x K Zx) in H. set (n := (length (terms t) - 1)%nat) in *.
  assert (Ln : (n <= m - 1)%nat) by (destruct K as [Z [_ [_ L]]]; lia).
  assert (Q : Rabs (sum x A - P) <= lost * P).
  { unfold P. rewrite <- sum_minus. eapply Rle_trans; [apply sum_abs|].
    apply Rle_trans with (sum (fun j => omega * p j + 5 / 2 * weights_smallest) A).
    - apply sum_le. intros. apply Nx. auto.
    - rewrite sum_plus, sum_scal, sum_const. fold P. unfold lost. apply le_INR in LA.
      assert (0 <= weights_smallest) by lra.
      assert (INR (length A) * (5 / 2 * weights_smallest) <= INR m * (5 / 2 * weights_smallest)) by (apply Rmult_le_compat_r; lra).
      assert (4 * INR m * weights_smallest * (69 / 100) <= 4 * INR m * weights_smallest * P).
      { apply Rmult_le_compat_l; auto. pose proof (pos_INR m). apply Rmult_le_pos; lra. }
      assert (0 <= INR m * weights_smallest) by (apply Rmult_le_pos; [apply pos_INR|lra]). lra. }
  apply Rabs_le_inv in Q. pose proof lost_nonneg as L0.
  set (h := (1 - u) ^ (m - 1)).
  assert (Hp : 0 < h) by (apply shrink_pos, u_small).
  assert (Hh : h <= (1 - u) ^ n) by (apply shrink_mono; auto).
  assert (Hg : (1 + u) ^ n <= / h).
  { apply Rle_trans with ((1 + u) ^ (m - 1)); [apply rise_mono; auto|].
    apply Rmult_le_reg_r with h; auto. rewrite Rinv_l by lra. apply rise_shrink; auto. }
  assert (Hl : 1 + lost <= / (1 - lost)).
  { apply Rmult_le_reg_r with (1 - lost); [lra|]. rewrite Rinv_l by lra. nra. }
  rewrite Rinv_mult. assert (0 < / h) by (apply Rinv_0_lt_compat; auto).
  split.
  - apply Rle_trans with ((1 - u) ^ n * sum x A); [|lra].
    replace ((1 - lost) * h * P) with (h * ((1 - lost) * P)) by ring. apply Rmult_le_compat; try lra. apply Rmult_le_pos; lra.
  - apply Rle_trans with ((1 + u) ^ n * sum x A); [lra|].
    replace (/ (1 - lost) * / h * P) with (/ h * (/ (1 - lost) * P)) by ring.
    apply Rmult_le_compat; try lra.
    + pose proof (rise_ge_1 u U0 n). lra.
    + apply Rle_trans with ((1 - lost) * P); [apply Rmult_le_pos; lra|lra].
    + apply Rle_trans with ((1 + lost) * P); [lra|]. apply Rmult_le_compat_r; lra.
Qed.

(** The relative error that a row shares: from n roundings of a quotient, from l, and from the computed sum D. *)
Lemma common_factor D f l n : let a := (1 - lost) * (1 - u) ^ (m - 1) in a * P <= D <= / a * P ->
  (1 - u) ^ n <= f <= / (1 - u) ^ n -> (n <= 3)%nat -> (1 <= m)%nat -> Rabs l <= lambda ->
  Rabs (f * (P / D) * (1 + l) - 1) <= common.
Proof.
  cbv zeta. intros [Dl Du] [Fl Fu] N M L. rewrite common_closed.
  assert (U0 : 0 <= u) by lra. pose proof lost_nonneg as L0.
  set (h := (1 - u) ^ (m - 1)) in *. set (a := (1 - lost) * h) in *.
  assert (Hp : 0 < h) by (apply shrink_pos, u_small).
  assert (h <= 1) by (apply shrink_le_1; auto).
  assert (Ap : 0 < a) by (apply Rmult_lt_0_compat; lra). assert (A1 : a <= 1) by (unfold a; nra).
  set (c := (1 - u) ^ n) in *. set (c3 := (1 - u) ^ 3).
  assert (Cp : 0 < c) by (apply shrink_pos, u_small).
  assert (C3p : 0 < c3) by (apply shrink_pos, u_small).
  assert (C3 : c3 <= c) by (apply shrink_mono; auto).
  assert (C1 : c <= 1) by (apply shrink_le_1; auto).
  assert (Pp : 0 < P) by lra. assert (Dp : 0 < D) by nra.
  assert (PD : a <= P / D <= / a).
  { split.
    - apply Rmult_le_reg_r with D; auto. unfold Rdiv. rewrite Rmult_assoc, Rinv_l, Rmult_1_r by lra.
      apply Rle_trans with (a * (/ a * P)); [apply Rmult_le_compat_l; lra|]. right. field. lra.
    - apply Rmult_le_reg_r with D; auto. unfold Rdiv. rewrite Rmult_assoc, Rinv_l, Rmult_1_r by lra.
      apply Rle_trans with (/ a * (a * P)); [right; field; lra|]. apply Rmult_le_compat_l; [|lra].
      left. apply Rinv_0_lt_compat, Ap. }
  replace ((1 - lost) * (1 - u) ^ (m + 2)) with (c3 * a).
  2:{ unfold a, h, c3. replace (m + 2)%nat with (3 + (m - 1))%nat by lia. rewrite pow_add. ring. }
  apply shared_error; auto.
  - split; [apply Rmult_lt_0_compat; auto|]. nra.
  - rewrite Rinv_mult. assert (/ c <= / c3) by (apply Rinv_le_contravar; auto).
    split; apply Rmult_le_compat; lra.
Qed.

Lemma divides_after_near w' tN N D l y : stored w w' -> over_keys tN -> dot_product u smallest w' v tN N ->
  (let a := (1 - lost) * (1 - u) ^ (m - 1) in a * P <= D <= / a * P) ->
  Rabs l <= lambda -> quotient 3 l (N / D) y ->
  Rabs (y - o') <= common * Rabs o' + (1 + common) * (roundings * mass' + underflow).
Proof.
  intros S K T HD L [f [z [F [Z E]]]]. destruct (over_keys_counts tN K) as [LA L1].
  assert (U0 : 0 <= u) by lra. pose proof P_inverse as IP. pose proof values_nonneg as V0. pose proof mass'_nonneg as M0.
  pose proof (common_factor D f l 3 HD F ltac:(lia) L1 L) as C. set (c := f * (P / D) * (1 + l)) in *.
  pose proof common_nonneg as C0. pose proof (g_nonneg m) as G0. unfold g in G0. pose proof (g_nonneg 2) as G2. unfold g in G2.
  assert (Dp : 0 < D).
  { cbv zeta in HD. pose proof (shrink_pos u u_small (m - 1)). assert (0 < (1 - lost) * (1 - u) ^ (m - 1)) by (apply Rmult_lt_0_compat; lra).
    assert (0 < (1 - lost) * (1 - u) ^ (m - 1) * P) by (apply Rmult_lt_0_compat; lra). lra. }
  pose proof (dot_product_error u smallest U0 smallest_pos _ _ _ _ T) as H. cbv zeta in H.
  rewrite (sum_over_keys tN (fun j => w' j * v j) K) in H by (intros; rewrite (masked_stored _ _ S) by auto; ring).
  rewrite (sum_over_keys tN (fun j => Rabs (w' j * v j)) K) in H
    by (intros; rewrite (masked_stored _ _ S), Rmult_0_l by auto; apply Rabs_R0).
  assert (Ln : (length (terms tN) <= m)%nat) by (destruct K as [? [_ [_ ?]]]; auto).
  assert (L1n := terms_nonempty tN).
  pose proof (rise_ge_1 u U0 (length (terms tN))) as R1.
  assert (Rg : (1 + u) ^ length (terms tN) <= 1 + growth u m).
  { eapply Rle_trans; [apply rise_mono; eauto|]. apply rise_le_growth; auto. }
  set (gm := growth u m) in *.
  assert (In_ : INR (length (terms tN)) <= INR m) by (apply le_INR; auto).
  assert (In1 : 1 <= INR (length (terms tN))) by (change 1 with (INR 1); apply le_INR; auto).
  assert (UN : 0 <= weights_smallest) by lra.
  set (un := weights_smallest) in *.
  (* the sums of |w' v| and of |w' - p| |v| *)
  assert (W' : sum (fun j => Rabs (w' j * v j)) A <= P * ((1 + omega) * mass') + 5 / 2 * un * values).
  { unfold mass', values. rewrite <- !sum_scal, <- sum_plus. apply sum_le. intros j I.
    rewrite Rabs_mult. pose proof (stored_near w' j S I) as Q. pose proof (p_pos j I).
    assert (Rabs (w' j) <= (1 + omega) * p j + 5 / 2 * un).
    { replace (w' j) with ((w' j - p j) + p j) by ring. eapply Rle_trans; [apply Rabs_triang|].
      rewrite (Rabs_pos_eq (p j)) by lra. unfold un. lra. }
    replace (P * ((1 + omega) * (p j / P * Rabs (v j))) + 5 / 2 * un * Rabs (v j))
      with (((1 + omega) * p j + 5 / 2 * un) * Rabs (v j)) by (field; lra).
    apply Rmult_le_compat_r; [apply Rabs_pos|auto]. }
  assert (Wd : Rabs (sum (fun j => w' j * v j) A - P * o') <= P * (omega * mass') + 5 / 2 * un * values).
  { unfold o', mass', values. rewrite <- !sum_scal, <- sum_plus, <- sum_minus. eapply Rle_trans; [apply sum_abs|].
    apply sum_le. intros j I. pose proof (stored_near w' j S I) as Q.
    replace (w' j * v j - P * (p j / P * v j)) with ((w' j - p j) * v j) by (field; lra). rewrite Rabs_mult.
    replace (P * (omega * (p j / P * Rabs (v j))) + 5 / 2 * un * Rabs (v j))
      with ((omega * p j + 5 / 2 * un) * Rabs (v j)) by (field; lra).
    apply Rmult_le_compat_r; [apply Rabs_pos|auto]. }
  assert (ND : Rabs (N - P * o') <= P * (((1 + gm) * (1 + omega) - 1) * mass') + (1 + gm) * (5 / 2 * un * values + 2 * INR m * smallest)).
  { replace (N - P * o') with ((N - sum (fun j => w' j * v j) A) + (sum (fun j => w' j * v j) A - P * o')) by ring.
    eapply Rle_trans; [apply Rabs_triang|].
    set (sa := sum (fun j => Rabs (w' j * v j)) A) in *.
    assert (0 <= sa) by (apply sum_nonneg; intros; apply Rabs_pos).
    assert (((1 + u) ^ length (terms tN) - 1) * sa <= gm * (P * ((1 + omega) * mass') + 5 / 2 * un * values)) by (apply Rmult_le_compat; lra).
    assert ((2 * INR (length (terms tN)) - 1) * (smallest * (1 + u) ^ length (terms tN)) <= 2 * INR m * (smallest * (1 + gm))).
    { apply Rmult_le_compat; try lra; [apply Rmult_le_pos; lra|]. apply Rmult_le_compat_l; lra. }
    lra. }
  assert (Y : y - o' = c * ((N - P * o') / P) + (c - 1) * o' + z) by (rewrite E; unfold c; field; lra).
  assert (Cb : Rabs c <= 1 + common).
  { replace c with (1 + (c - 1)) by ring. eapply Rle_trans; [apply Rabs_triang|]. rewrite Rabs_R1. lra. }
  rewrite Y. eapply Rle_trans; [apply Rabs_triang|]. eapply Rle_trans; [apply Rplus_le_compat_r, Rabs_triang|].
  rewrite !Rabs_mult. assert (T1 : Rabs (c - 1) * Rabs o' <= common * Rabs o') by (apply Rmult_le_compat_r; [apply Rabs_pos|auto]).
  set (mm := INR m * smallest). assert (Mm : smallest <= mm).
  { unfold mm. assert (1 * smallest <= INR m * smallest); [|lra]. apply Rmult_le_compat_r; auto. lra. }
  assert (T2 : Rabs ((N - P * o') / P) <= ((1 + gm) * (1 + omega) - 1) * mass' + (1 + gm) * (29 / 8 * un * values + 29 / 10 * mm)).
  { unfold Rdiv. rewrite Rabs_mult, (Rabs_pos_eq (/ P)) by lra.
    apply Rle_trans with ((P * (((1 + gm) * (1 + omega) - 1) * mass') + (1 + gm) * (5 / 2 * un * values + 2 * mm)) * / P).
    - apply Rmult_le_compat_r; [lra|]. unfold mm. lra.
    - rewrite Rmult_plus_distr_r. replace (P * (((1 + gm) * (1 + omega) - 1) * mass') * / P) with (((1 + gm) * (1 + omega) - 1) * mass') by (field; lra).
      apply Rplus_le_compat_l. rewrite Rmult_assoc. apply Rmult_le_compat_l; [lra|].
      assert (0 <= un * values) by (apply Rmult_le_pos; auto).
      apply Rle_trans with ((5 / 2 * un * values + 2 * mm) * (29 / 20)); [apply Rmult_le_compat_l; lra|lra]. }
  assert (T3 : Rabs ((N - P * o') / P) + smallest <= roundings * mass' + underflow).
  { unfold underflow. fold un values. rewrite roundings_closed. fold gm mm.
    assert (Rm : ((1 + gm) * (1 + omega) - 1) * mass' <= roundings * mass').
    { apply Rmult_le_compat_r; auto. assert (R := roundings_closed). fold gm in R.
      assert (0 <= growth u 2 * ((1 + gm) * (1 + omega))) by (apply Rmult_le_pos; [auto|apply Rmult_le_pos; lra]). lra. }
    assert (G1 : 1 + gm <= (1 + gm) * (1 + growth u 2) * (1 + omega)).
    { rewrite Rmult_assoc. assert ((1 + gm) * 1 <= (1 + gm) * ((1 + growth u 2) * (1 + omega))); [|lra].
      apply Rmult_le_compat_l; [lra|]. assert (0 <= growth u 2 * omega) by (apply Rmult_le_pos; auto). lra. }
    set (gg := (1 + gm) * (1 + growth u 2) * (1 + omega)) in *.
    assert (0 <= un * values) by (apply Rmult_le_pos; auto).
    assert ((1 + gm) * (29 / 8 * un * values + 29 / 10 * mm) <= gg * (29 / 8 * un * values + 29 / 10 * mm)) by (apply Rmult_le_compat_r; lra).
    assert (1 * mm <= gg * mm) by (apply Rmult_le_compat_r; lra).
    assert (0 <= gg * (un * values)) by (apply Rmult_le_pos; lra). lra. }
  assert (T4 : Rabs c * Rabs ((N - P * o') / P) <= (1 + common) * Rabs ((N - P * o') / P)) by (apply Rmult_le_compat_r; [apply Rabs_pos|auto]).
  assert (T5 : 1 * smallest <= (1 + common) * smallest) by (apply Rmult_le_compat_r; lra).
  assert (T6 : (1 + common) * (Rabs ((N - P * o') / P) + smallest) <= (1 + common) * (roundings * mass' + underflow)) by (apply Rmult_le_compat_l; lra).
  lra.
Qed.

Lemma divides_before_near a a' t D l y : stored a a' -> over_keys t -> dot_product u smallest a' v t y ->
  (let b := (1 - lost) * (1 - u) ^ (m - 1) in b * P <= D <= / b * P) ->
  Rabs l <= lambda -> (forall j, In j A -> quotient 2 l (w j / D) (a j)) ->
  Rabs (y - o') <= common * Rabs o' + (1 + common) * (roundings * mass' + underflow).
Proof.
  intros S K T HD L Q. destruct (over_keys_counts t K) as [LA L1].
  assert (U0 : 0 <= u) by lra. pose proof P_inverse as IP. pose proof values_nonneg as V0. pose proof mass'_nonneg as M0.
  assert (C : Rabs (1 * (P / D) * (1 + l) - 1) <= common).
  { apply (common_factor D 1 l 0 HD); [simpl; rewrite Rinv_1; lra|lia|auto|auto]. }
  set (c := 1 * (P / D) * (1 + l)) in *.
  pose proof common_nonneg as C0. pose proof (g_nonneg m) as G0. unfold g in G0. pose proof (g_nonneg 2) as G2. unfold g in G2.
  assert (Dp : 0 < D).
  { cbv zeta in HD. pose proof (shrink_pos u u_small (m - 1)). assert (0 < (1 - lost) * (1 - u) ^ (m - 1)) by (apply Rmult_lt_0_compat; lra).
    assert (0 < (1 - lost) * (1 - u) ^ (m - 1) * P) by (apply Rmult_lt_0_compat; lra). lra. }
  pose proof (dot_product_error u smallest U0 smallest_pos _ _ _ _ T) as H. cbv zeta in H.
  rewrite (sum_over_keys t (fun j => a' j * v j) K) in H by (intros; rewrite (masked_stored _ _ S) by auto; ring).
  rewrite (sum_over_keys t (fun j => Rabs (a' j * v j)) K) in H
    by (intros; rewrite (masked_stored _ _ S), Rmult_0_l by auto; apply Rabs_R0).
  assert (Ln : (length (terms t) <= m)%nat) by (destruct K as [? [_ [_ ?]]]; auto).
  assert (L1n := terms_nonempty t).
  pose proof (rise_ge_1 u U0 (length (terms t))) as R1.
  assert (Rg : (1 + u) ^ length (terms t) <= 1 + growth u m).
  { eapply Rle_trans; [apply rise_mono; eauto|]. apply rise_le_growth; auto. }
  assert (RC := roundings_closed).
  set (gm := growth u m) in *. set (g2 := growth u 2) in *.
  assert (In_ : INR (length (terms t)) <= INR m) by (apply le_INR; auto).
  assert (In1 : 1 <= INR (length (terms t))) by (change 1 with (INR 1); apply le_INR; auto).
  assert (UN : 0 <= weights_smallest) by lra.
  set (un := weights_smallest) in *. set (cc := 1 + common) in *.
  assert (Cb : Rabs c <= cc).
  { replace c with (1 + (c - 1)) by ring. eapply Rle_trans; [apply Rabs_triang|]. rewrite Rabs_R1. unfold cc. lra. }
  assert (CC : 1 <= cc) by (unfold cc; lra).
  set (q2 := (1 + g2) * (1 + omega)) in *.
  assert (Q1 : 1 + g2 <= q2) by (unfold q2; assert (0 <= (1 + g2) * omega) by (apply Rmult_le_pos; lra); lra).
  assert (Near : forall j, In j A -> Rabs (a' j - c * (p j / P)) <= cc * ((q2 - 1) * (p j / P) + 69 / 20 * q2 * un)).
  { intros j I. destruct (Q j I) as [f [z [[Fl Fu] [Hz E]]]].
    pose proof (p_pos j I) as Pj. pose proof (w_near j I) as Wn. pose proof (w_nonneg j I) as W0.
    assert (PP : 0 <= p j / P) by (unfold Rdiv; apply Rmult_le_pos; lra).
    assert (F0 : 0 <= f) by (pose proof (shrink_pos u u_small 2); lra).
    assert (F1 : f <= 1 + g2) by (unfold g2, growth; lra).
    assert (Fn : Rabs (f - 1) <= g2).
    { apply Rabs_le. split; [|lra]. pose proof (shrink_pos u u_small 2) as Sp. set (h := (1 - u) ^ 2) in *.
      assert (2 - / h <= h); [|unfold g2, growth; fold h; lra].
      apply Rmult_le_reg_r with h; auto. rewrite Rmult_minus_distr_r, Rinv_l by lra.
      pose proof (Rle_0_sqr (h - 1)). unfold Rsqr in *. lra. }
    assert (B : Rabs (a j - c * (p j / P)) <= cc * (g2 * (p j / P) + 49 / 20 * ((1 + g2) * smallest))).
    { replace (a j - c * (p j / P)) with (c * ((f * (w j - p j) + (f - 1) * p j) * / P) + z) by (rewrite E; unfold c; field; lra).
      eapply Rle_trans; [apply Rabs_triang|]. rewrite !Rabs_mult, (Rabs_pos_eq (/ P)) by lra.
      assert (X : Rabs (f * (w j - p j) + (f - 1) * p j) <= (1 + g2) * smallest + g2 * p j).
      { eapply Rle_trans; [apply Rabs_triang|]. rewrite !Rabs_mult, (Rabs_pos_eq f), (Rabs_pos_eq (p j)) by lra.
        apply Rplus_le_compat; apply Rmult_le_compat; try lra; apply Rabs_pos. }
      assert (Y : Rabs (f * (w j - p j) + (f - 1) * p j) * / P <= 29 / 20 * ((1 + g2) * smallest) + g2 * (p j / P)).
      { apply Rle_trans with (((1 + g2) * smallest + g2 * p j) * / P); [apply Rmult_le_compat_r; lra|].
        assert (0 <= (1 + g2) * smallest) by (apply Rmult_le_pos; lra).
        assert ((1 + g2) * smallest * / P <= (1 + g2) * smallest * (29 / 20)) by (apply Rmult_le_compat_l; lra).
        unfold Rdiv. lra. }
      assert (Z : Rabs c * (Rabs (f * (w j - p j) + (f - 1) * p j) * / P) <= cc * (29 / 20 * ((1 + g2) * smallest) + g2 * (p j / P))).
      { apply Rmult_le_compat; auto; [apply Rabs_pos|apply Rmult_le_pos; [apply Rabs_pos|lra]]. }
      assert (1 * smallest <= cc * ((1 + g2) * smallest)).
      { rewrite <- Rmult_assoc. apply Rmult_le_compat_r; auto. rewrite <- (Rmult_1_r 1). apply Rmult_le_compat; lra. }
      lra. }
    pose proof (weights_stored _ _ S j I) as St. unfold rounded in St. fold un in St.
    set (db := cc * (g2 * (p j / P) + 49 / 20 * ((1 + g2) * smallest))) in *.
    assert (Ab : Rabs (a j) <= cc * (p j / P) + db).
    { replace (a j) with ((a j - c * (p j / P)) + c * (p j / P)) by ring. eapply Rle_trans; [apply Rabs_triang|].
      rewrite Rabs_mult, (Rabs_pos_eq (p j / P)) by auto.
      assert (Rabs c * (p j / P) <= cc * (p j / P)) by (apply Rmult_le_compat_r; auto). lra. }
    assert (Om : omega * Rabs (a j) <= omega * (cc * (p j / P) + db)) by (apply Rmult_le_compat_l; auto).
    replace (a' j - c * (p j / P)) with ((a' j - a j) + (a j - c * (p j / P))) by ring.
    eapply Rle_trans; [apply Rabs_triang|].
    apply Rle_trans with (omega * (cc * (p j / P) + db) + un + db); [lra|].
    assert (E1 : omega * (cc * (p j / P) + db) + db = cc * ((q2 - 1) * (p j / P) + 49 / 20 * (q2 * smallest))) by (unfold db, q2; ring).
    assert (1 * un <= cc * (q2 * un)).
    { rewrite <- Rmult_assoc. apply Rmult_le_compat_r; auto. rewrite <- (Rmult_1_r 1). apply Rmult_le_compat; lra. }
    assert (q2 * smallest <= q2 * un) by (apply Rmult_le_compat_l; lra).
    assert (cc * (49 / 20 * (q2 * smallest)) <= cc * (49 / 20 * (q2 * un))) by (apply Rmult_le_compat_l; lra).
    lra. }
  set (r := 69 / 20 * q2 * un) in *.
  assert (R0 : 0 <= r) by (unfold r; apply Rmult_le_pos; lra).
  assert (PP : forall j, In j A -> 0 <= p j / P) by (intros j I; pose proof (p_pos j I); unfold Rdiv; apply Rmult_le_pos; lra).
  assert (Sd : Rabs (sum (fun j => a' j * v j) A - c * o') <= cc * ((q2 - 1) * mass' + r * values)).
  { unfold o', mass', values. rewrite <- !sum_scal, <- sum_plus, <- sum_scal, <- sum_minus. eapply Rle_trans; [apply sum_abs|].
    apply sum_le. intros j I. replace (a' j * v j - c * (p j / P * v j)) with ((a' j - c * (p j / P)) * v j) by ring.
    rewrite Rabs_mult. eapply Rle_trans; [apply Rmult_le_compat_r; [apply Rabs_pos|apply Near, I]|]. right. ring. }
  assert (Sm : sum (fun j => Rabs (a' j * v j)) A <= cc * (q2 * mass' + r * values)).
  { unfold mass', values. rewrite <- !sum_scal, <- sum_plus, <- sum_scal. apply sum_le. intros j I. rewrite Rabs_mult.
    assert (Rabs (a' j) <= cc * (q2 * (p j / P) + r)).
    { replace (a' j) with ((a' j - c * (p j / P)) + c * (p j / P)) by ring. eapply Rle_trans; [apply Rabs_triang|].
      pose proof (Near j I). rewrite Rabs_mult, (Rabs_pos_eq (p j / P)) by auto.
      assert (Rabs c * (p j / P) <= cc * (p j / P)) by (apply Rmult_le_compat_r; auto). lra. }
    eapply Rle_trans; [apply Rmult_le_compat_r; [apply Rabs_pos|eassumption]|]. right. ring. }
  set (sa := sum (fun j => Rabs (a' j * v j)) A) in *.
  assert (S0 : 0 <= sa) by (apply sum_nonneg; intros; apply Rabs_pos).
  set (mm := INR m * smallest). assert (Mm : 0 <= mm) by (apply Rmult_le_pos; [apply pos_INR|auto]).
  assert (H1 : ((1 + u) ^ length (terms t) - 1) * sa <= gm * (cc * (q2 * mass' + r * values))) by (apply Rmult_le_compat; lra).
  assert (H2 : (2 * INR (length (terms t)) - 1) * (smallest * (1 + u) ^ length (terms t)) <= 2 * INR m * (smallest * (1 + gm))).
  { apply Rmult_le_compat; try lra; [apply Rmult_le_pos; lra|]. apply Rmult_le_compat_l; lra. }
  replace (y - o') with ((y - sum (fun j => a' j * v j) A) + (sum (fun j => a' j * v j) A - c * o') + (c - 1) * o') by ring.
  eapply Rle_trans; [apply Rabs_triang|]. eapply Rle_trans; [apply Rplus_le_compat_r, Rabs_triang|].
  rewrite (Rabs_mult (c - 1)).
  assert (T1 : Rabs (c - 1) * Rabs o' <= common * Rabs o') by (apply Rmult_le_compat_r; [apply Rabs_pos|auto]).
  assert (E2 : (1 + gm) * q2 = 1 + roundings) by (rewrite RC; unfold q2; ring).
  assert (Uf : underflow = 4 * ((1 + gm) * q2) * (mm + un * values)) by (rewrite E2; reflexivity).
  assert (E3 : gm * (cc * (q2 * mass' + r * values)) + cc * ((q2 - 1) * mass' + r * values)
    = cc * (roundings * mass' + (1 + gm) * (r * values))).
  { replace roundings with ((1 + gm) * q2 - 1) by lra. ring. }
  assert (V1 : 0 <= (1 + gm) * q2 * (un * values)) by (apply Rmult_le_pos; [apply Rmult_le_pos; lra|apply Rmult_le_pos; auto]).
  assert (V2 : (1 + gm) * (r * values) <= 4 * ((1 + gm) * q2) * (un * values)) by (unfold r; lra).
  assert (V3 : 2 * INR m * (smallest * (1 + gm)) <= cc * (4 * ((1 + gm) * q2) * mm)).
  { assert (X1 : (1 + gm) * 1 <= (1 + gm) * q2) by (apply Rmult_le_compat_l; lra).
    assert (X2 : 2 * (1 + gm) * mm <= 4 * ((1 + gm) * q2) * mm) by (apply Rmult_le_compat_r; lra).
    assert (X3 : 1 * (4 * ((1 + gm) * q2) * mm) <= cc * (4 * ((1 + gm) * q2) * mm)).
    { apply Rmult_le_compat_r; auto. apply Rmult_le_pos; [|auto]. lra. }
    unfold mm in *. lra. }
  assert (V4 : cc * ((1 + gm) * (r * values)) <= cc * (4 * ((1 + gm) * q2) * (un * values))) by (apply Rmult_le_compat_l; lra).
  rewrite Uf. lra.
Qed.
End Weights.

(** Every result of a kernel is within the bound. *)
Theorem attention_bound y result : kernel y -> rounded output output_smallest y result ->
  0 <= output -> 0 <= output_smallest -> Rabs (result - o) <= result_bound.
Proof.
  intros Ky R O0 S0.
  assert (Core : exists e M w, exponentials e M w /\ forall p, (forall j, In j A -> 0 < p j) ->
    (forall j, In j A -> Rabs (w j - p j) <= smallest) -> 69 / 100 <= sum p A ->
    Rabs (y - sum (fun j => p j / sum p A * v j) A) <=
      common * Rabs (sum (fun j => p j / sum p A * v j) A)
      + (1 + common) * (roundings * sum (fun j => p j / sum p A * Rabs (v j)) A + underflow)).
  { destruct Ky as [e M w w' x tN tD N D l y E St Pw Sum KD TD KN TN L Q | e M w a a' tN tD D l y E KD TD L Q St KN TN];
    exists e, M, w; (split; [exact E|]); intros p Pp Wn Pl;
    (assert (W0 : forall j, In j A -> 0 <= w j) by (intros j I; destruct (exponentials_computed _ _ _ E j I) as [z [_ [? _]]]; auto));
    pose proof (masked_exponentials _ _ _ E) as Wm.
    - apply (divides_after_near p w Pp Wn W0 Pl w' tN N D l y); auto.
      apply (sum_of_weights p w Pp Wn W0 Wm Pl x tD D); auto.
      destruct Sum as [->| ->]; [left; reflexivity|right; exists w'; auto].
    - apply (divides_before_near p w Pp Wn W0 Pl a a' tN D l y); auto.
      apply (sum_of_weights p w Pp Wn W0 Wm Pl w tD D); auto. }
  destruct Core as [e [M [w [E Core]]]]. destruct (perturbed e M w E) as [eta [B [N Pl]]].
  specialize (Core (fun j => exp (score j - M + eta j)) (fun j _ => exp_pos _) N Pl).
  set (p := fun j => exp (score j - M + eta j)) in *.
  (* the weights p, normalised, are those of the pooling lemmas *)
  set (Z := sum (fun i => exp (shifted i)) A) in *.
  assert (Zp : 0 < Z) by (apply sum_pos; auto; intros; apply exp_pos).
  assert (Ap : forall j, In j A -> 0 < alpha j) by (intros; apply Rdiv_lt_0_compat; [apply exp_pos|exact Zp]).
  assert (At : sum alpha A = 1) by (unfold alpha; rewrite sum_div; fold Z; field; lra).
  set (C := Z * exp (highest - M)). assert (Cp : 0 < C) by (apply Rmult_lt_0_compat; [auto|apply exp_pos]).
  assert (Pj : forall j, p j = C * (alpha j * exp (eta j))).
  { intros j. unfold p, C, alpha. fold Z. replace (score j - M + eta j) with ((highest - M) + shifted j + eta j) by (unfold shifted; ring).
    rewrite !exp_plus. field. lra. }
  set (W := sum (fun j => alpha j * exp (eta j)) A).
  assert (Wp : 0 < W).
  { apply sum_pos; auto. intros j I. pose proof (Ap j I). apply Rmult_lt_0_compat; [auto|apply exp_pos]. }
  assert (Sp : sum p A = C * W) by (unfold W; rewrite <- sum_scal; apply sum_ext; intros; apply Pj).
  assert (Mv : forall f, sum (fun j => p j / sum p A * f j) A = sum (fun j => alpha j * exp (eta j) / W * f j) A).
  { intros f. apply sum_ext. intros j _. rewrite Sp, Pj. field. lra. }
  rewrite (Mv v), (Mv (fun j => Rabs (v j))) in Core.
  set (o' := sum (fun j => alpha j * exp (eta j) / W * v j) A) in *.
  set (mass' := sum (fun j => alpha j * exp (eta j) / W * Rabs (v j)) A) in *.
  assert (We : Rabs (o' - o) <= weighting).
  { apply Rmin_glb.
    - apply (pooling_error_squares A alpha v eta delta); auto.
    - apply (pooling_error_farthest A alpha v eta delta); auto. intros j I. apply (maximum_ge (fun j => Rabs (v j - o))), I. }
  assert (Ma : mass' <= mass).
  { apply (mass_moved A alpha v eta delta); auto. intros j I. apply (maximum_ge (fun j => Rabs (v j))), I. }
  pose proof common_nonneg as C0. pose proof lost_nonneg as L0. pose proof (g_nonneg (m + 2)) as G. unfold g in G.
  assert (R0 : 0 <= roundings).
  { unfold roundings. assert (0 <= omega * growth u (m + 2)) by (apply Rmult_le_pos; auto). lra. }
  assert (Ob : Rabs o' <= Rabs o + weighting).
  { replace o' with (o + (o' - o)) by ring. eapply Rle_trans; [apply Rabs_triang|]. lra. }
  assert (Yb : Rabs (y - o) <= bound).
  { replace (y - o) with ((o' - o) + (y - o')) by ring. eapply Rle_trans; [apply Rabs_triang|]. unfold bound.
    assert (common * Rabs o' <= common * (Rabs o + weighting)) by (apply Rmult_le_compat_l; auto).
    assert (roundings * mass' <= roundings * mass) by (apply Rmult_le_compat_l; auto).
    assert ((1 + common) * (roundings * mass' + underflow) <= (1 + common) * (roundings * mass + underflow)) by (apply Rmult_le_compat_l; lra).
    lra. }
  unfold rounded in R. unfold result_bound.
  replace (result - o) with ((result - y) + (y - o)) by ring. eapply Rle_trans; [apply Rabs_triang|].
  assert (Ya : Rabs y <= Rabs o + bound).
  { replace y with (o + (y - o)) by ring. eapply Rle_trans; [apply Rabs_triang|]. lra. }
  assert (output * Rabs y <= output * (Rabs o + bound)) by (apply Rmult_le_compat_l; auto). lra.
Qed.

(** The definition of a kernel is not empty: exact arithmetic satisfies it. *)
Lemma exactly_rounded a b x : 0 <= a -> 0 <= b -> rounded a b x x.
Proof.
  intros. unfold rounded. replace (x - x) with 0 by ring. rewrite Rabs_R0.
  pose proof (Rabs_pos x). assert (0 <= a * Rabs x) by (apply Rmult_le_pos; auto). lra.
Qed.

Lemma order_of l : l <> [] -> exists t, terms t = l /\
  (forall x, total u x t (sum x l)) /\ (forall x y, dot_product u smallest x y t (sum (fun j => x j * y j) l)).
Proof.
  assert (E1 : forall x : R, x + 0 = x) by (intros; ring).
  induction l as [|i l IH]; [congruence|]. intros _. destruct l as [|i' l].
  - exists (Term i). split; [reflexivity|]. split; intros; simpl; rewrite E1.
    + constructor.
    + constructor. apply exactly_rounded; lra.
  - destruct IH as [t [E [T D]]]; [discriminate|]. exists (Plus (Term i) t). split; [simpl; rewrite E; reflexivity|].
    split; intros.
    + apply (total_plus u x (Term i) t (x i) (sum x (i' :: l))); [constructor|apply T|apply exactly_rounded; lra].
    + apply (dot_plus u smallest x y (Term i) t (x i * y i) (sum (fun j => x j * y j) (i' :: l)));
        [constructor; apply exactly_rounded; lra|apply D|apply exactly_rounded; lra].
Qed.

Theorem exact_kernel : (length A <= m)%nat -> (forall j, In j masked -> ~ In j A) -> kernel o.
Proof.
  intros L Disjoint. destruct (order_of A attendable) as [t [E [T D]]].
  destruct (order_of (seq 0 d)) as [tq [Eq [_ Dq]]].
  { intros H. apply (f_equal (@length nat)) in H. rewrite seq_length in H. simpl in H. lia. }
  assert (K : exists w, (forall j, w j = if in_dec Nat.eq_dec j A then exp (shifted j) else 0)) by (eexists; reflexivity).
  destruct K as [w W].
  assert (Wa : forall j, In j A -> w j = exp (shifted j)).
  { intros j I. rewrite W. destruct (in_dec Nat.eq_dec j A); [reflexivity|contradiction]. }
  set (Z := sum (fun i => exp (shifted i)) A).
  assert (Zw : sum w A = Z) by (apply sum_ext; auto).
  assert (Zp : 0 < Z) by (apply sum_pos; auto; intros; apply exp_pos).
  assert (Ko : over_keys t).
  { exists []. rewrite E, app_nil_r. split; [|split; auto]. intros x []. }
  assert (Ma : forall j, In j masked -> w j = 0).
  { intros j I. rewrite W. destruct (in_dec Nat.eq_dec j A) as [J|J]; [elim (Disjoint j I J)|reflexivity]. }
  assert (Lp : Rabs 0 <= lambda) by (rewrite Rabs_R0; auto).
  assert (Ex : exponentials score highest w).
  { split; auto.
    - apply scaled_after. intros j I. exists tq, (sum (fun c => q c * k j c) (seq 0 d)). rewrite Eq. split; [auto|].
      split; [apply Dq|]. apply exactly_rounded; lra.
    - unfold highest. rewrite Rminus_eq_0, Rabs_R0. lra.
    - intros j I. exists (shifted j). split; [apply exactly_rounded; lra|]. rewrite Wa by auto.
      split; [left; apply exp_pos|]. apply exactly_rounded; lra. }
  assert (Wn : forall j, In j A -> 0 <= w j) by (intros j I; rewrite Wa by auto; left; apply exp_pos).
  assert (St : stored w w) by (split; auto; intros; apply exactly_rounded; lra).
  assert (Q : quotient 3 0 (sum (fun j => w j * v j) A / Z) o).
  { exists 1, 0. rewrite Rabs_R0. pose proof (shrink_pos u u_small 3). pose proof (shrink_le_1 u ltac:(lra) u_small 3).
    pose proof (growth_nonneg u ltac:(lra) u_small 3) as G. unfold growth in G.
    repeat split; auto; try lra. unfold o, alpha. fold Z.
    rewrite (sum_ext (fun j => exp (shifted j) / Z * v j) (fun j => w j * v j / Z)), sum_div by (intros; rewrite Wa by auto; field; lra).
    ring. }
  apply (divides_after score highest w w w t t (sum (fun j => w j * v j) A) Z 0 o); auto.
  rewrite <- Zw. apply T.
Qed.

End Attention.

(** A row without attendable keys: the exact result is 0, and a kernel that returns 0 does not err. *)
Theorem empty_row d q k v : o d q k v [] = 0.
Proof. reflexivity. Qed.

(** * Limits

    The limits of a kernel's definition are reached, so that none of its premises can be made stricter unnoticed: one query
    of one feature, an attendable key 0, a masked key 1 in every sum, and all roundings as large as allowed. *)
Section Limits.
Variables (u smallest omega weights_smallest lambda shift : R) (v : nat -> R).
Hypothesis u_pos : 0 < u < 1.
Hypothesis smallest_pos : 0 <= smallest.
Hypothesis omega_pos : 0 <= omega.
Hypothesis weights_smallest_pos : 0 <= weights_smallest.
Hypothesis lambda_pos : 0 <= lambda.
Hypothesis shift_small : Rabs shift <= 1 / 4.

Definition up (a b x : R) : R := x + (a * Rabs x + b).
Definition only_first (x : R) (j : nat) : R := match j with O => x | S _ => 0 end.
Definition one (_ : nat) : R := 1.

Definition score_scaled_after : R := up (4 * u) smallest (up u smallest (1 * 1) / sqrt (INR 1)).
Definition score_scaled_before : R := up u smallest (up u 0 (1 / sqrt (INR 1) * (1 + 3 * u)) * 1).
Definition weight (e : R) : R := up (4 * u) smallest (exp (up (3 * u) (3 * smallest) (e - (e + shift)))).
Definition stored_weight (w : R) : R := up omega weights_smallest w.
Definition sum_with_masked (x : R) : R := up u 0 (x + 0).
Definition pooled (x : R) : R := up u smallest (up u smallest (x * v 0%nat) + up u smallest (0 * v 1%nat)).
Definition pooled_fused (x : R) : R := up u smallest (x * v 0%nat + up u smallest (0 * v 1%nat)).
Definition divided (n : nat) (x : R) : R := x * / (1 - u) ^ n * (1 + lambda) + smallest.

Lemma up_rounded a b x : 0 <= a -> 0 <= b -> rounded a b x (up a b x).
Proof.
  intros. unfold rounded, up. replace (x + (a * Rabs x + b) - x) with (a * Rabs x + b) by ring.
  rewrite Rabs_pos_eq; [lra|]. pose proof (Rabs_pos x). nra.
Qed.

Lemma up_nonneg a b x : 0 <= a -> 0 <= b -> 0 <= x -> 0 <= up a b x.
Proof. intros. unfold up. pose proof (Rabs_pos x). nra. Qed.

Lemma divided_quotient n x : quotient u smallest n lambda x (divided n x).
Proof.
  assert (P : 0 < (1 - u) ^ n <= 1).
  { split; [apply pow_lt; lra|]. apply Rle_trans with (1 ^ n); [apply pow_incr; lra|rewrite pow1; lra]. }
  assert (I : / 1 <= / (1 - u) ^ n) by (apply Rinv_le_contravar; lra). rewrite Rinv_1 in I.
  exists (/ (1 - u) ^ n), smallest. rewrite (Rabs_pos_eq smallest) by auto. repeat split; lra.
Qed.

Let key_scores e := scores u smallest 1 one (fun _ => one) [0%nat] (only_first e).
Let any_kernel := kernel u smallest omega weights_smallest lambda 1 2 one (fun _ => one) v [0%nat] [1%nat].

Lemma scores_at_limits : key_scores score_scaled_after /\ key_scores score_scaled_before.
Proof.
  split.
  - apply scaled_after. intros j [<-|[]]. exists (Term 0), (up u smallest (1 * 1)). split; [apply Permutation_refl|].
    split; [apply dot_term|]; apply up_rounded; lra.
  - apply (scaled_before _ _ _ _ _ _ _ (fun _ => up u 0 (1 / sqrt (INR 1) * (1 + 3 * u))) (3 * u)).
    + rewrite Rabs_pos_eq; lra.
    + intros c _. apply up_rounded; lra.
    + intros j [<-|[]]. exists (Term 0). split; [apply Permutation_refl|]. apply dot_term, up_rounded; lra.
Qed.

Lemma exponentials_at_limits e : key_scores e ->
  exponentials u smallest 1 one (fun _ => one) [0%nat] [1%nat] (only_first e) (e + shift) (only_first (weight e)).
Proof.
  intros S. split; [exact S| | |intros j [<-|[]]; reflexivity].
  - simpl. replace (e + shift - e) with shift by ring. exact shift_small.
  - intros j [<-|[]]. exists (up (3 * u) (3 * smallest) (e - (e + shift))). split; [apply up_rounded; lra|].
    simpl. split; [|apply up_rounded; lra]. apply up_nonneg; try lra. left. apply exp_pos.
Qed.

Lemma stored_at_limits x : stored omega weights_smallest [0%nat] [1%nat] (only_first x) (only_first (stored_weight x)).
Proof. split; intros j [<-|[]]; [apply up_rounded; lra|reflexivity]. Qed.

Lemma over_both_keys t : terms t = [0%nat; 1%nat] -> over_keys 2 [0%nat] [1%nat] t.
Proof. intros E. exists [1%nat]. rewrite E. repeat split; auto with datatypes. Qed.

Lemma sum_at_limits x : total u (only_first x) (Plus (Term 0) (Term 1)) (sum_with_masked x).
Proof. apply (total_plus _ _ _ _ x 0); [apply total_term|apply total_term|apply up_rounded; lra]. Qed.

Theorem divides_after_at_limits e s : e = score_scaled_after \/ e = score_scaled_before ->
  s = weight e \/ s = stored_weight (weight e) ->
  any_kernel (divided 3 (pooled (stored_weight (weight e)) / sum_with_masked s)).
Proof.
  intros E S. assert (K : key_scores e) by (destruct scores_at_limits; destruct E; subst; auto).
  apply (divides_after _ _ _ _ _ _ _ _ _ _ _ _ (only_first e) (e + shift) (only_first (weight e))
    (only_first (stored_weight (weight e))) (only_first s) (Plus (Term 0) (Term 1)) (Plus (Term 0) (Term 1))
    (pooled (stored_weight (weight e))) (sum_with_masked s) lambda).
  - apply exponentials_at_limits, K.
  - apply stored_at_limits.
  - intros j [<-|[]]. do 2 (apply up_nonneg; try lra). left. apply exp_pos.
  - destruct S; subst; auto.
  - apply over_both_keys. reflexivity.
  - apply sum_at_limits.
  - apply over_both_keys. reflexivity.
  - eapply dot_plus; [apply dot_term|apply dot_term|]; apply up_rounded; lra.
  - rewrite Rabs_pos_eq; lra.
  - apply divided_quotient.
Qed.

Theorem divides_before_at_limits e : e = score_scaled_after \/ e = score_scaled_before ->
  any_kernel (pooled_fused (stored_weight (divided 2 (weight e / sum_with_masked (weight e))))).
Proof.
  intros E. assert (K : key_scores e) by (destruct scores_at_limits; destruct E; subst; auto).
  set (a := divided 2 (weight e / sum_with_masked (weight e))).
  apply (divides_before _ _ _ _ _ _ _ _ _ _ _ _ (only_first e) (e + shift) (only_first (weight e))
    (only_first a) (only_first (stored_weight a)) (Fused (Term 1) 0) (Plus (Term 0) (Term 1)) (sum_with_masked (weight e)) lambda).
  - apply exponentials_at_limits, K.
  - apply over_both_keys. reflexivity.
  - apply sum_at_limits.
  - rewrite Rabs_pos_eq; lra.
  - intros j [<-|[]]. apply divided_quotient.
  - apply stored_at_limits.
  - apply over_both_keys. reflexivity.
  - eapply dot_fused; [apply dot_term|]; apply up_rounded; lra.
Qed.
End Limits.
