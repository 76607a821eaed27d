(** IEEE formats satisfy the assumptions of the bound: Flocq's lemmas in the notation of [Rounding] and [Bound]. *)
From Coq Require Import Reals List Lra Lia ZArith Permutation.
From Flocq Require Import Core Relative Plus_error.
From attnspec Require Import Sums Rounding Pooling Bound.
Import ListNotations.
Open Scope R_scope.

Section Format.
(** A binary format with [precision] bits, whose smallest positive number is 2^[emin].
    [choice] breaks ties. *)
Variables (precision emin : Z) (choice : Z -> bool).
Context {precision_pos : Prec_gt_0 precision}.
Hypothesis precise : (6 <= precision)%Z.
Hypothesis range : (emin + precision <= -10)%Z.

Definition unit_roundoff : R := bpow radix2 (- precision).
Definition smallest_normal : R := bpow radix2 (emin + precision - 1).
Definition nearest (x : R) : R := round radix2 (FLT_exp emin precision) (Znearest choice) x.

(** y is x rounded to nearest; subnormal results may be flushed to 0. *)
Definition computed (x y : R) : Prop :=
  y = nearest x \/ (Rabs (nearest x) < smallest_normal /\ y = 0).

Let u := unit_roundoff.
Let least := smallest_normal.

Lemma least_pos : 0 < least.
Proof. apply bpow_gt_0. Qed.

Lemma least_below_1 : least <= / 1024.
Proof. unfold least, smallest_normal. change (/ 1024) with (bpow radix2 (-10)). apply bpow_le. lia. Qed.

Lemma u_bounds : 0 < u <= 1 / 64.
Proof.
  split; [apply bpow_gt_0|]. unfold u, unit_roundoff. replace (1 / 64) with (bpow radix2 (-6)) by (simpl; lra).
  apply bpow_le. lia.
Qed.

Lemma u_is_half : u = u_ro radix2 precision.
Proof. unfold u, unit_roundoff, u_ro. rewrite bpow_plus. simpl. lra. Qed.

Lemma half_step : / 2 * bpow radix2 emin <= least.
Proof.
  unfold least, smallest_normal. apply Rle_trans with (bpow radix2 emin).
  - pose proof (bpow_gt_0 radix2 emin). lra.
  - apply bpow_le. lia.
Qed.

Lemma nearest_large x : least <= Rabs x -> least <= Rabs (nearest x).
Proof.
  intros H. apply abs_round_ge_generic; auto with typeclass_instances.
  apply generic_format_bpow. unfold FLT_exp. unfold Prec_gt_0 in *. lia.
Qed.

(** y = x(1 + δ) + η, with |δ| ≤ u/(1 + u) and |η| at most the smallest normal number *)
Theorem computed_model x y : computed x y ->
  exists e z, Rabs e <= u / (1 + u) /\ Rabs z <= least /\ y = x * (1 + e) + z.
Proof.
  rewrite u_is_half. intros [->|[S ->]].
  - destruct (relative_error_N_FLT'_ex radix2 emin precision precision_pos choice x) as [e [z [E [Z [_ H]]]]].
    exists e, z. repeat split; auto. eapply Rle_trans; [exact Z|apply half_step].
  - exists 0, (- x). rewrite Rabs_R0, Rabs_Ropp. repeat split.
    + apply u_rod1pu_ro_pos.
    + destruct (Rle_or_lt least (Rabs x)) as [G|G]; [|lra]. apply nearest_large in G. unfold least in G. lra.
    + ring.
Qed.

(** y = x(1 + δ) where the exact result is no smaller than the smallest normal number *)
Theorem computed_normal x y : computed x y -> least <= Rabs x ->
  exists e, Rabs e <= u / (1 + u) /\ y = x * (1 + e).
Proof.
  intros [->|[S ->]] N.
  - rewrite u_is_half. unfold nearest. unfold least, smallest_normal in N.
    rewrite round_FLT_FLX by exact N. apply relative_error_N_FLX'_ex; auto.
  - apply nearest_large in N. unfold least in N. lra.
Qed.

Lemma small_ratio : 0 <= u / (1 + u) <= u.
Proof.
  pose proof u_bounds. assert (0 < / (1 + u)) by (apply Rinv_0_lt_compat; lra). split; [apply Rmult_le_pos; lra|].
  apply Rmult_le_reg_r with (1 + u); [lra|]. unfold Rdiv. rewrite Rmult_assoc, Rinv_l by lra. nra.
Qed.

Theorem computed_rounded x y : computed x y -> rounded u least x y.
Proof.
  intros H. destruct (computed_model x y H) as [e [z [E [Z ->]]]]. unfold rounded. pose proof small_ratio.
  replace (x * (1 + e) + z - x) with (x * e + z) by ring. eapply Rle_trans; [apply Rabs_triang|].
  rewrite Rabs_mult. assert (Rabs x * Rabs e <= Rabs x * u) by (apply Rmult_le_compat_l; [apply Rabs_pos|lra]). lra.
Qed.

(** Numbers that are 0 or normal, and not negative, have sums without underflow. *)
Theorem computed_sum x y z : (x = 0 \/ least <= x) -> (y = 0 \/ least <= y) -> computed (x + y) z ->
  rounded u 0 (x + y) z.
Proof.
  intros X Y H. pose proof least_pos. destruct (Req_dec (x + y) 0) as [E|N].
  - rewrite E in H |- *. assert (Z : z = 0).
    { destruct H as [Hz|[_ Hz]]; rewrite Hz; auto. apply round_0. auto with typeclass_instances. }
    rewrite Z. unfold rounded. rewrite Rminus_0_r, Rabs_R0. lra.
  - destruct (computed_normal (x + y) z H) as [e [E ->]].
    + rewrite Rabs_pos_eq; destruct X as [X|X], Y as [Y|Y]; solve [lra | exfalso; apply N; lra].
    + unfold rounded. pose proof small_ratio. replace ((x + y) * (1 + e) - (x + y)) with ((x + y) * e) by ring.
      rewrite Rabs_mult. pose proof (Rabs_pos (x + y)). nra.
Qed.

(** With subnormal numbers, no sum of two numbers of the format underflows. *)
Theorem nearest_sum x y : generic_format radix2 (FLT_exp emin precision) x ->
  generic_format radix2 (FLT_exp emin precision) y -> rounded u 0 (x + y) (nearest (x + y)).
Proof.
  intros X Y. destruct (Rle_or_lt least (Rabs (x + y))) as [L|L].
  - destruct (computed_normal (x + y) (nearest (x + y)) (or_introl eq_refl) L) as [e [E H]]. rewrite H.
    unfold rounded. pose proof small_ratio. replace ((x + y) * (1 + e) - (x + y)) with ((x + y) * e) by ring.
    rewrite Rabs_mult. pose proof (Rabs_pos (x + y)). nra.
  - unfold nearest. rewrite round_generic; auto with typeclass_instances.
    + unfold rounded. replace (x + y - (x + y)) with 0 by ring. rewrite Rabs_R0. pose proof (Rabs_pos (x + y)). pose proof u_bounds. nra.
    + apply FLT_format_plus_small; auto. unfold least, smallest_normal in L. apply Rlt_le, (Rlt_le_trans _ _ _ L), bpow_le. lia.
Qed.

(** The scale: a product with the rounded reciprocal of the rounded root, or a division by the rounded root. *)
Section Scale.
Variables (d : nat) (root : R).
Hypothesis features : (1 <= d)%nat.
Hypothesis root_computed : computed (sqrt (INR d)) root.

Lemma root_error : exists e, Rabs e <= u / (1 + u) /\ root = sqrt (INR d) * (1 + e) /\ 1 <= sqrt (INR d).
Proof.
  assert (R1 : 1 <= sqrt (INR d)).
  { rewrite <- sqrt_1. apply sqrt_le_1_alt. change 1 with (INR 1). apply le_INR, features. }
  destruct (computed_normal _ _ root_computed) as [e [E H]]; [|exists e; auto].
  rewrite Rabs_pos_eq by lra. pose proof least_below_1. lra.
Qed.

Lemma one_over e : Rabs e <= u / (1 + u) -> 1 - u <= / (1 + e) <= 1 + u.
Proof.
  intros E. apply Rabs_le_inv in E. pose proof u_bounds. pose proof small_ratio.
  assert (V : u / (1 + u) * (1 + u) = u) by (field; lra). set (v := u / (1 + u)) in *.
  split; (apply Rmult_le_reg_r with (1 + e); [lra|]); rewrite Rinv_l by lra.
  - apply Rle_trans with ((1 - u) * (1 + v)); [apply Rmult_le_compat_l; lra|]. nra.
  - apply Rle_trans with ((1 + u) * (1 - v)); [lra|]. apply Rmult_le_compat_l; lra.
Qed.

Theorem scale_by_reciprocal c r e : least <= / root -> computed (/ root) c -> computed (r * c) e ->
  rounded (4 * u) least (r / sqrt (INR d)) e.
Proof.
  intros N C E. destruct root_error as [e1 [B1 [R1 Q1]]]. pose proof u_bounds. pose proof small_ratio as SR.
  assert (P1 : 0 < root).
  { rewrite R1. apply Rabs_le_inv in B1. apply Rmult_lt_0_compat; lra. }
  destruct (computed_normal _ _ C) as [e2 [B2 ->]].
  { rewrite Rabs_pos_eq; auto. left. apply Rinv_0_lt_compat, P1. }
  destruct (computed_model _ _ E) as [e3 [z [B3 [Z ->]]]].
  pose proof (one_over e1 B1) as [L1 U1]. assert (I : / root = / sqrt (INR d) * / (1 + e1)) by (rewrite R1; apply Rinv_mult).
  set (f := / (1 + e1)) in *. apply Rabs_le_inv in B2. apply Rabs_le_inv in B3.
  set (v := u / (1 + u)) in *. set (x := r / sqrt (INR d)).
  unfold rounded. rewrite I. replace (r * (/ sqrt (INR d) * f * (1 + e2)) * (1 + e3) + z - x) with (x * (f * (1 + e2) * (1 + e3) - 1) + z)
    by (unfold x; field; lra).
  eapply Rle_trans; [apply Rabs_triang|]. rewrite Rabs_mult.
  assert (Rabs (f * (1 + e2) * (1 + e3) - 1) <= 4 * u).
  { assert (F1 : (1 - u) * (1 - u) <= f * (1 + e2)) by nra. assert (F2 : f * (1 + e2) <= (1 + u) * (1 + u)) by nra.
    assert (F3 : (1 - u) * (1 - u) * (1 - u) <= f * (1 + e2) * (1 + e3))
      by (apply Rmult_le_compat; try lra; apply Rmult_le_pos; lra).
    assert (F4 : f * (1 + e2) * (1 + e3) <= (1 + u) * (1 + u) * (1 + u))
      by (apply Rmult_le_compat; try lra; apply Rmult_le_pos; lra).
    apply Rabs_le. split; nra. }
  assert (Rabs x * Rabs (f * (1 + e2) * (1 + e3) - 1) <= Rabs x * (4 * u)) by (apply Rmult_le_compat_l; [apply Rabs_pos|auto]). lra.
Qed.

Theorem scale_by_division r e : computed (r / root) e -> rounded (4 * u) least (r / sqrt (INR d)) e.
Proof.
  intros E. destruct root_error as [e1 [B1 [R1 Q1]]]. pose proof u_bounds. pose proof small_ratio as SR.
  destruct (computed_model _ _ E) as [e3 [z [B3 [Z ->]]]].
  pose proof (one_over e1 B1) as [L1 U1]. pose proof (Rabs_le_inv _ _ B1) as B1'. apply Rabs_le_inv in B3.
  set (x := r / sqrt (INR d)). assert (I : r / root = x * / (1 + e1)) by (unfold x; rewrite R1; field; lra).
  set (f := / (1 + e1)) in *. set (v := u / (1 + u)) in *.
  unfold rounded. rewrite I. replace (x * f * (1 + e3) + z - x) with (x * (f * (1 + e3) - 1) + z) by ring.
  eapply Rle_trans; [apply Rabs_triang|]. rewrite Rabs_mult.
  assert (Rabs (f * (1 + e3) - 1) <= 4 * u).
  { assert (F1 : (1 - u) * (1 - u) <= f * (1 + e3)) by nra. assert (F2 : f * (1 + e3) <= (1 + u) * (1 + u)) by nra.
    apply Rabs_le. split; nra. }
  assert (Rabs x * Rabs (f * (1 + e3) - 1) <= Rabs x * (4 * u)) by (apply Rmult_le_compat_l; [apply Rabs_pos|auto]). lra.
Qed.
End Scale.

(** The exponent to base e or 2: 2^t with t = (e − M) log₂ e is exp(t ln 2). *)
Theorem exponent_to_base_e e M x : computed (e - M) x -> rounded (3 * u) (3 * least) (e - M) x.
Proof.
  intros H. apply computed_rounded in H. unfold rounded in *. pose proof u_bounds. pose proof least_pos.
  pose proof (Rabs_pos (e - M)). assert (u * Rabs (e - M) <= 3 * u * Rabs (e - M)) by nra. lra.
Qed.

Theorem exponent_to_base_2 e M s c t : computed (e - M) s -> computed (/ ln 2) c -> computed (s * c) t ->
  rounded (3 * u) (3 * least) (e - M) (t * ln 2).
Proof.
  intros S C T. pose proof u_bounds as Ub. pose proof small_ratio as SR. pose proof least_below_1 as Lb. pose proof least_pos as Lp.
  assert (L2 : / 2 <= ln 2 <= 1).
  { split.
    - pose proof (exp_ineq1_le (- ln 2)) as H. rewrite exp_Ropp, exp_ln in H by lra. lra.
    - pose proof (exp_ineq1_le (ln 2)) as H. rewrite exp_ln in H by lra. lra. }
  assert (I2 : 1 <= / ln 2) by (rewrite <- Rinv_1; apply Rinv_le_contravar; lra).
  destruct (computed_model _ _ S) as [e1 [z1 [B1 [Z1 ->]]]].
  destruct (computed_normal _ _ C) as [e2 [B2 ->]]; [rewrite Rabs_pos_eq; lra|].
  destruct (computed_model _ _ T) as [e3 [z3 [B3 [Z3 ->]]]].
  pose proof (three_roundings u e1 e2 e3 ltac:(lra) ltac:(lra) B1 B2 B3) as Th. unfold rounded. set (x := e - M).
  replace (((x * (1 + e1) + z1) * (/ ln 2 * (1 + e2)) * (1 + e3) + z3) * ln 2 - x)
    with (x * ((1 + e1) * (1 + e2) * (1 + e3) - 1) + (z1 * ((1 + e2) * (1 + e3)) + z3 * ln 2)) by (field; lra).
  apply Rabs_le_inv in B2. apply Rabs_le_inv in B3.
  eapply Rle_trans; [apply Rabs_triang|]. rewrite Rabs_mult.
  assert (Rabs x * Rabs ((1 + e1) * (1 + e2) * (1 + e3) - 1) <= Rabs x * (3 * u)) by (apply Rmult_le_compat_l; [apply Rabs_pos|auto]).
  assert (Rabs (z1 * ((1 + e2) * (1 + e3)) + z3 * ln 2) <= 3 * least); [|lra].
  eapply Rle_trans; [apply Rabs_triang|]. rewrite !Rabs_mult, (Rabs_pos_eq (ln 2)) by lra.
  assert (0 <= (1 + e2) * (1 + e3) <= 2) by (split; nra).
  rewrite <- (Rabs_mult (1 + e2)), (Rabs_pos_eq ((1 + e2) * (1 + e3))) by lra.
  assert (Rabs z1 * ((1 + e2) * (1 + e3)) <= least * 2) by (apply Rmult_le_compat; try lra; apply Rabs_pos).
  assert (Rabs z3 * ln 2 <= least * 1) by (apply Rmult_le_compat; try lra; apply Rabs_pos). lra.
Qed.

(** A quotient, or a product with the rounded reciprocal *)
Lemma factor_1 e : Rabs e <= u / (1 + u) -> 1 - u <= 1 + e <= / (1 - u).
Proof.
  intros E. apply Rabs_le_inv in E. pose proof u_bounds. pose proof small_ratio. split; [lra|].
  apply Rmult_le_reg_r with (1 - u); [lra|]. rewrite Rinv_l by lra. nra.
Qed.

Theorem quotient_by_division n N D y : (1 <= n)%nat -> computed (N / D) y -> quotient u least n 0 (N / D) y.
Proof.
  intros L H. destruct (computed_model _ _ H) as [e [z [E [Z ->]]]]. exists (1 + e), z. pose proof (factor_1 e E) as F.
  pose proof u_bounds. assert (S : (1 - u) ^ n <= 1 - u).
  { rewrite <- (pow_1 (1 - u)) at 2. apply shrink_mono; lra || auto. }
  repeat split; auto; [lra| |ring].
  eapply Rle_trans; [apply F|]. apply Rinv_le_contravar; [apply shrink_pos; lra|auto].
Qed.

Theorem quotient_by_reciprocal n N D c y : (2 <= n)%nat -> least <= Rabs (/ D) -> computed (/ D) c -> computed (N * c) y ->
  quotient u least n 0 (N / D) y.
Proof.
  intros L B C H. destruct (computed_normal _ _ C B) as [e1 [E1 ->]]. destruct (computed_model _ _ H) as [e2 [z [E2 [Z ->]]]].
  exists ((1 + e1) * (1 + e2)), z. pose proof (factor_1 e1 E1) as F1. pose proof (factor_1 e2 E2) as F2.
  pose proof u_bounds. assert (S : (1 - u) ^ n <= (1 - u) ^ 2) by (apply shrink_mono; lra || auto).
  assert (P2 : 0 < (1 - u) ^ 2) by (apply shrink_pos; lra).
  assert (I : / (1 - u) ^ 2 <= / (1 - u) ^ n) by (apply Rinv_le_contravar; auto; apply shrink_pos; lra).
  repeat split; auto.
  - eapply Rle_trans; [exact S|]. simpl. rewrite Rmult_1_r. apply Rmult_le_compat; lra.
  - eapply Rle_trans; [|exact I]. simpl. rewrite Rmult_1_r, Rinv_mult. apply Rmult_le_compat; lra.
  - unfold Rdiv. ring.
Qed.

(** * A program with one format, rounded to nearest after each operation, is one of the kernels. *)

(** The sum of x in one order, with a rounding after each addition. *)
Fixpoint added (x : nat -> R) (t : order) : R :=
  match t with
  | Term j => x j
  | Plus a b => nearest (added x a + added x b)
  | Fused a _ => added x a
  end.

(** An order without fused multiply-adds. *)
Fixpoint plain (t : order) : Prop :=
  match t with Term _ => True | Plus a b => plain a /\ plain b | Fused _ _ => False end.

Let in_format := generic_format radix2 (FLT_exp emin precision).

Lemma added_total x t : plain t -> (forall j, In j (terms t) -> in_format (x j)) ->
  total u x t (added x t) /\ in_format (added x t).
Proof.
  induction t as [j|a IHa b IHb|a IHa j]; simpl; intros P F; [|destruct P as [Pa Pb]|destruct P].
  - split; [constructor|apply F; auto].
  - destruct (IHa Pa (fun j I => F j (in_or_app _ _ _ (or_introl I)))) as [Ta Fa].
    destruct (IHb Pb (fun j I => F j (in_or_app _ _ _ (or_intror I)))) as [Tb Fb].
    split; [|apply generic_format_round; auto with typeclass_instances].
    apply (total_plus u x a b (added x a) (added x b)); auto. apply nearest_sum; auto.
Qed.

Lemma nearest_rounded x : rounded u least x (nearest x).
Proof. apply computed_rounded. left. reflexivity. Qed.

Theorem nearest_kernel d m q k v A root c e w order_of_scores sums pools :
  (1 <= d)%nat -> A <> [] -> (length A <= m)%nat ->
  root = nearest (sqrt (INR d)) -> c = nearest (/ root) -> least <= / root ->
  (forall j, In j A -> Permutation (terms (order_of_scores j)) (seq 0 d)) ->
  (forall j, In j A -> e j = nearest (evaluated nearest q (k j) (order_of_scores j) * c)) ->
  (forall j, In j A -> in_format (w j) /\ 0 <= w j /\ rounded (4 * u) least (exp (nearest (e j - maximum e A))) (w j)) ->
  Permutation (terms sums) A -> plain sums -> Permutation (terms pools) A ->
  kernel u least 0 least 0 d m q k v A [] (nearest (evaluated nearest w v pools / added w sums)).
Proof.
  intros D N L Rt C Nr Ps Es Ws Pd Pl Pp. pose proof u_bounds as Ub. pose proof least_pos as Lp.
  assert (Ex : exponentials u least d q k A [] e (maximum e A) w).
  { split.
    - apply scaled_after. intros j I. exists (order_of_scores j), (evaluated nearest q (k j) (order_of_scores j)).
      split; [auto|]. split; [apply evaluated_dot_product, nearest_rounded|].
      apply (scale_by_reciprocal d root D (or_introl Rt) c); auto; left; auto.
    - rewrite Rminus_eq_0, Rabs_R0. lra.
    - intros j I. destruct (Ws j I) as [_ [W0 W]]. exists (nearest (e j - maximum e A)).
      split; [apply exponent_to_base_e; left; reflexivity|auto].
    - intros j []. }
  assert (St : stored 0 least A [] w w).
  { split; [|intros j []]. intros j I. apply exactly_rounded; lra. }
  assert (Keys : forall t, Permutation (terms t) A -> over_keys m A [] t).
  { intros t P. exists []. rewrite app_nil_r, (Permutation_length P). split; [|split; auto]. intros x []. }
  apply (divides_after u least 0 least 0 d m q k v A [] e (maximum e A) w w w pools sums
    (evaluated nearest w v pools) (added w sums) 0); auto.
  - intros j I. apply Ws, I.
  - apply added_total; auto. intros j I. apply Ws. apply (Permutation_in j Pd I).
  - apply evaluated_dot_product, nearest_rounded.
  - rewrite Rabs_R0. lra.
  - apply quotient_by_division; [lia|]. left. reflexivity.
Qed.
End Format.

(** The formats of float32, float64, and of weights and results in 16 bits. *)
Theorem binary32 choice x y : computed 24 (-149) choice x y -> rounded (bpow radix2 (-24)) (bpow radix2 (-126)) x y.
Proof. assert (P : Prec_gt_0 24) by reflexivity. apply (computed_rounded 24 (-149) choice); lia. Qed.

Theorem binary64 choice x y : computed 53 (-1074) choice x y -> rounded (bpow radix2 (-53)) (bpow radix2 (-1022)) x y.
Proof. assert (P : Prec_gt_0 53) by reflexivity. apply (computed_rounded 53 (-1074) choice); lia. Qed.

Theorem bfloat16 choice x y : computed 8 (-133) choice x y -> rounded (bpow radix2 (-8)) (bpow radix2 (-126)) x y.
Proof. assert (P : Prec_gt_0 8) by reflexivity. apply (computed_rounded 8 (-133) choice); lia. Qed.

(** Subnormal numbers are kept: the absolute error is half the smallest of them. *)
Theorem binary16 choice x : rounded (bpow radix2 (-11)) (bpow radix2 (-25)) x
  (round radix2 (FLT_exp (-24) 11) (Znearest choice) x).
Proof.
  assert (P : Prec_gt_0 11) by reflexivity.
  destruct (relative_error_N_FLT'_ex radix2 (-24) 11 P choice x) as [e [z [E [Z [_ H]]]]]. rewrite H. unfold rounded.
  replace (x * (1 + e) + z - x) with (x * e + z) by ring. eapply Rle_trans; [apply Rabs_triang|]. rewrite Rabs_mult.
  assert (Rabs e <= bpow radix2 (-11)).
  { eapply Rle_trans; [exact E|]. eapply Rle_trans; [apply u_rod1pu_ro_le_u_ro|]. unfold u_ro. simpl. lra. }
  assert (/ 2 * bpow radix2 (-24) = bpow radix2 (-25)) by (simpl; lra).
  assert (Rabs x * Rabs e <= Rabs x * bpow radix2 (-11)) by (apply Rmult_le_compat_l; [apply Rabs_pos|auto]). lra.
Qed.

(** The bound in four precision classes, for at most 2²⁰ features and keys. *)
Section Classes.
Variables (lambda : R) (d m : nat) (q : nat -> R) (k : nat -> nat -> R) (v : nat -> R) (A masked : list nat) (y result : R).
Hypothesis lambda_pos : 0 <= lambda.
Hypothesis features : (1 <= d)%nat.
Hypothesis few_features : INR d <= bpow radix2 20.
Hypothesis few_keys : INR m <= bpow radix2 20.
Hypothesis attendable : A <> [].

(** Every result is within the bound. The arguments are the unit roundoff and the absolute error near 0 of the
    accumulation, then of the weights, then of the result. *)
Definition within_bound (u s omega s' out s'' : R) : Prop :=
  kernel u s omega s' lambda d m q k v A masked y -> rounded out s'' y result ->
  Rabs (result - o d q k v A) <= result_bound u s omega s' out s'' lambda d m q k v A.

Lemma within u s omega s' out s'' : 0 < u -> u <= bpow radix2 (-24) -> 0 <= s -> s <= u * bpow radix2 (-27) -> s <= s' ->
  0 <= omega -> omega <= 1 / 2 -> s' <= bpow radix2 (-24) -> 0 <= out -> 0 <= s'' -> within_bound u s omega s' out s''.
Proof.
  intros U1 U2 S1 S2 S3 O1 O2 S4 T1 T2 K R.
  assert (U3 : u <= 1 / 64) by (eapply Rle_trans; [exact U2|]; simpl; lra).
  apply (attention_bound u s omega s' out s'' lambda d m q k v A masked) with (y := y); auto.
  - unfold lost. assert (INR m * s' <= bpow radix2 20 * bpow radix2 (-24)) by (apply Rmult_le_compat; auto; [apply pos_INR|lra]).
    simpl in H. lra.
  - assert (G : growth u d <= 1).
    { apply growth_le_1; [lra|lra|]. apply Rle_trans with (bpow radix2 20 * bpow radix2 (-24)); [|simpl; lra].
      apply Rmult_le_compat; auto; [apply pos_INR|lra]. }
    assert (P : 0 <= 1 + growth u d) by (pose proof (growth_nonneg u ltac:(lra) U3 d); lra).
    assert (D : INR d * s <= bpow radix2 20 * (u * bpow radix2 (-27))) by (apply Rmult_le_compat; auto; apply pos_INR).
    simpl in D. assert (0 <= INR d * s) by (apply Rmult_le_pos; [apply pos_INR|auto]).
    apply Rle_trans with (32 * INR d * s * 2); [apply Rmult_le_compat_l; lra|]. lra.
Qed.

Lemma power_le x z : (x <= z)%Z -> bpow radix2 x <= bpow radix2 z.
Proof. apply bpow_le. Qed.

Ltac powers := first [apply bpow_gt_0 | apply bpow_ge_0 | apply power_le; lia | rewrite <- bpow_plus; apply power_le; simpl; lia
  | lra | simpl; lra].

Theorem ieee32 : within_bound (bpow radix2 (-24)) (bpow radix2 (-126)) 0 (bpow radix2 (-126)) 0 (bpow radix2 (-126)).
Proof. apply within; powers. Qed.

Theorem ieee64 : within_bound (bpow radix2 (-53)) (bpow radix2 (-1022)) 0 (bpow radix2 (-1022)) 0 (bpow radix2 (-1022)).
Proof. apply within; powers. Qed.

Theorem mixed_bfloat16 :
  within_bound (bpow radix2 (-24)) (bpow radix2 (-126)) (bpow radix2 (-8)) (bpow radix2 (-126)) (bpow radix2 (-8)) (bpow radix2 (-126)).
Proof. apply within; powers. Qed.

Theorem mixed_float16 :
  within_bound (bpow radix2 (-24)) (bpow radix2 (-126)) (bpow radix2 (-11)) (bpow radix2 (-25)) (bpow radix2 (-11)) (bpow radix2 (-25)).
Proof. apply within; powers. Qed.
End Classes.
