(** Rounding errors of sums and dot products, in any order of summation. *)
From Coq Require Import Reals List Lra Lia Permutation.
From attnspec Require Import Sums.
Import ListNotations.
Open Scope R_scope.

(** y is x rounded: u is the unit roundoff, eta the largest absolute error near 0, where results may underflow. *)
Definition rounded (u eta x y : R) : Prop := Rabs (y - x) <= u * Rabs x + eta.

(** Relative error of n roundings and divisions by rounded numbers: (1 − u)⁻ⁿ − 1. *)
Definition growth (u : R) (n : nat) : R := / (1 - u) ^ n - 1.

(** Orders of summation. A product is rounded before it is added, except in a fused multiply-add. *)
Inductive order : Type :=
  | Term (j : nat)
  | Plus (a b : order)
  | Fused (a : order) (j : nat).

Fixpoint terms (t : order) : list nat :=
  match t with
  | Term j => [j]
  | Plus a b => terms a ++ terms b
  | Fused a j => j :: terms a
  end.

(** r is a computed Σ x_j y_j. *)
Inductive dot_product (u eta : R) (x y : nat -> R) : order -> R -> Prop :=
  | dot_term j r : rounded u eta (x j * y j) r -> dot_product u eta x y (Term j) r
  | dot_plus a b ra rb r : dot_product u eta x y a ra -> dot_product u eta x y b rb ->
      rounded u eta (ra + rb) r -> dot_product u eta x y (Plus a b) r
  | dot_fused a j ra r : dot_product u eta x y a ra ->
      rounded u eta (x j * y j + ra) r -> dot_product u eta x y (Fused a j) r.

(** r is a computed Σ x_j. The numbers are at least 0, and their sums do not underflow. *)
Inductive total (u : R) (x : nat -> R) : order -> R -> Prop :=
  | total_term j : total u x (Term j) (x j)
  | total_plus a b ra rb r : total u x a ra -> total u x b rb ->
      rounded u 0 (ra + rb) r -> total u x (Plus a b) r.

(** The dot product as a program computes it, in one order and with one rounding function. *)
Fixpoint evaluated (rnd : R -> R) (x y : nat -> R) (t : order) : R :=
  match t with
  | Term j => rnd (x j * y j)
  | Plus a b => rnd (evaluated rnd x y a + evaluated rnd x y b)
  | Fused a j => rnd (x j * y j + evaluated rnd x y a)
  end.

Theorem evaluated_dot_product u eta rnd x y t : (forall z, rounded u eta z (rnd z)) ->
  dot_product u eta x y t (evaluated rnd x y t).
Proof. intros H. induction t; simpl; econstructor; eauto. Qed.

Lemma terms_nonempty t : (1 <= length (terms t))%nat.
Proof. induction t; simpl; rewrite ?app_length; lia. Qed.

Section Growth.
Variable u : R.
Hypothesis u_pos : 0 <= u.
Hypothesis u_small : u <= 1 / 64.

Lemma shrink_pos n : 0 < (1 - u) ^ n.
Proof. apply pow_lt. lra. Qed.

Lemma shrink_le_1 n : (1 - u) ^ n <= 1.
Proof. induction n; simpl; [lra|]. pose proof (shrink_pos n). nra. Qed.

Lemma growth_nonneg n : 0 <= growth u n.
Proof.
  unfold growth. pose proof (shrink_pos n). pose proof (shrink_le_1 n).
  assert (1 <= / (1 - u) ^ n) by (rewrite <- Rinv_1 at 1; apply Rinv_le_contravar; lra). lra.
Qed.

Lemma growth_plus n m : (1 + growth u n) * (1 + growth u m) = 1 + growth u (n + m).
Proof.
  unfold growth. rewrite pow_add, Rinv_mult. ring.
Qed.

Lemma growth_mono n m : (n <= m)%nat -> growth u n <= growth u m.
Proof.
  intros L. replace m with (n + (m - n))%nat by lia. pose proof (growth_plus n (m - n)).
  pose proof (growth_nonneg n). pose proof (growth_nonneg (m - n)). nra.
Qed.

Lemma growth_1 : 1 + u <= 1 + growth u 1.
Proof.
  unfold growth. simpl. rewrite Rmult_1_r. assert (1 + u <= / (1 - u)); [|lra].
  apply Rmult_le_reg_r with (1 - u); [lra|]. rewrite Rinv_l by lra. nra.
Qed.

Lemma rise_le_growth n : (1 + u) ^ n <= 1 + growth u n.
Proof.
  induction n as [|n IH].
  - unfold growth. simpl. rewrite Rinv_1. lra.
  - replace (S n) with (n + 1)%nat at 2 by lia. rewrite <- growth_plus. simpl.
    pose proof growth_1. pose proof (pow_lt (1 + u) n ltac:(lra)). nra.
Qed.

(** By Bernoulli's inequality, 1/(2u) roundings have a relative error of at most 1. *)
Lemma growth_le_1 n : INR n * u <= 1 / 2 -> growth u n <= 1.
Proof.
  intros H. assert (B : 1 - INR n * u <= (1 - u) ^ n).
  { clear H. induction n as [|n IH]; [simpl; lra|]. rewrite S_INR. simpl pow. pose proof (pos_INR n).
    apply Rle_trans with ((1 - u) * (1 - INR n * u)); [|apply Rmult_le_compat_l; lra].
    assert (0 <= INR n * (u * u)) by (apply Rmult_le_pos; [auto|apply Rmult_le_pos; auto]). lra. }
  unfold growth. assert (/ (1 - u) ^ n <= / (1 / 2)); [|lra]. apply Rinv_le_contravar; lra.
Qed.

Lemma rise_ge_1 n : 1 <= (1 + u) ^ n.
Proof. apply pow_R1_Rle. lra. Qed.

Lemma rise_mono n m : (n <= m)%nat -> (1 + u) ^ n <= (1 + u) ^ m.
Proof. intros. apply Rle_pow; lra || lia. Qed.

Lemma shrink_mono n m : (n <= m)%nat -> (1 - u) ^ m <= (1 - u) ^ n.
Proof.
  intros L. replace m with (n + (m - n))%nat by lia. rewrite pow_add.
  pose proof (shrink_le_1 (m - n)). pose proof (shrink_pos n). nra.
Qed.

Lemma rise_shrink n : (1 + u) ^ n * (1 - u) ^ n <= 1.
Proof.
  rewrite <- Rpow_mult_distr. replace 1 with (1 ^ n) at 3 by apply pow1. apply pow_incr. nra.
Qed.
End Growth.

Section Sums.
Variables u eta : R.
Hypothesis u_pos : 0 <= u.
Hypothesis u_small : u <= 1 / 64.
Hypothesis eta_pos : 0 <= eta.

Lemma rounded_error x y r e s : rounded u eta x y -> Rabs (x - r) <= e -> Rabs r <= s ->
  Rabs (y - r) <= (1 + u) * e + u * s + eta.
Proof.
  unfold rounded. intros H E S.
  pose proof (Rabs_triang (y - x) (x - r)). replace (y - x + (x - r)) with (y - r) in * by ring.
  pose proof (Rabs_triang (x - r) r). replace (x - r + r) with x in * by ring. nra.
Qed.

Theorem dot_product_error x y t r : dot_product u eta x y t r ->
  let n := length (terms t) in
  Rabs (r - sum (fun j => x j * y j) (terms t)) <=
    ((1 + u) ^ n - 1) * sum (fun j => Rabs (x j * y j)) (terms t) + (2 * INR n - 1) * (eta * (1 + u) ^ n).
Proof.
  induction 1 as [j r H|a b ra rb r Ha IHa Hb IHb H|a j ra r Ha IHa H]; simpl terms; cbv zeta.
  - unfold rounded in H. simpl. rewrite !Rplus_0_r, !Rmult_1_r.
    assert (eta <= eta * (1 + u)) by nra. lra.
  - rewrite app_length. set (na := length (terms a)) in *. set (nb := length (terms b)) in *.
    pose proof (terms_nonempty a) as La. pose proof (terms_nonempty b) as Lb. fold na in La. fold nb in Lb.
    rewrite !sum_app. cbv zeta in IHa, IHb.
    set (sa := sum (fun j => x j * y j) (terms a)) in *. set (sb := sum (fun j => x j * y j) (terms b)) in *.
    set (aa := sum (fun j => Rabs (x j * y j)) (terms a)) in *. set (ab := sum (fun j => Rabs (x j * y j)) (terms b)) in *.
    assert (Pa : 0 <= aa) by (apply sum_nonneg; intros; apply Rabs_pos).
    assert (Pb : 0 <= ab) by (apply sum_nonneg; intros; apply Rabs_pos).
    assert (Sa : Rabs sa <= aa) by apply sum_abs. assert (Sb : Rabs sb <= ab) by apply sum_abs.
    set (n := (na + nb - 1)%nat). replace (na + nb)%nat with (S n) by lia.
    assert (Ga : (1 + u) ^ na <= (1 + u) ^ n) by (apply rise_mono; auto; lia).
    assert (Gb : (1 + u) ^ nb <= (1 + u) ^ n) by (apply rise_mono; auto; lia).
    assert (G1 : 1 <= (1 + u) ^ n) by (apply rise_ge_1; auto).
    set (g := (1 + u) ^ n) in *. change ((1 + u) ^ S n) with ((1 + u) * g).
    assert (N : INR (S n) = INR na + INR nb) by (rewrite <- plus_INR; f_equal; lia).
    assert (Na : 1 <= INR na) by (change 1 with (INR 1); apply le_INR; auto).
    assert (Nb : 1 <= INR nb) by (change 1 with (INR 1); apply le_INR; auto).
    rewrite N. set (ia := INR na) in *. set (ib := INR nb) in *.
    assert (Ea : Rabs (ra - sa) <= (g - 1) * aa + (2 * ia - 1) * (eta * g)).
    { eapply Rle_trans; [apply IHa|]. apply Rplus_le_compat.
      - apply Rmult_le_compat_r; lra.
      - apply Rmult_le_compat_l; [lra|]. apply Rmult_le_compat_l; lra. }
    assert (Eb : Rabs (rb - sb) <= (g - 1) * ab + (2 * ib - 1) * (eta * g)).
    { eapply Rle_trans; [apply IHb|]. apply Rplus_le_compat.
      - apply Rmult_le_compat_r; lra.
      - apply Rmult_le_compat_l; [lra|]. apply Rmult_le_compat_l; lra. }
    eapply Rle_trans.
    + apply (rounded_error _ _ _ ((g - 1) * (aa + ab) + (2 * ia + 2 * ib - 2) * (eta * g)) (aa + ab) H).
      * replace (ra + rb - (sa + sb)) with ((ra - sa) + (rb - sb)) by ring.
        eapply Rle_trans; [apply Rabs_triang|]. lra.
      * eapply Rle_trans; [apply Rabs_triang|]. lra.
    + assert (eta <= eta * ((1 + u) * g)).
      { rewrite <- (Rmult_1_r eta) at 1. apply Rmult_le_compat_l; auto. nra. }
      apply Rle_trans with (((1 + u) * g - 1) * (aa + ab) + (2 * ia + 2 * ib - 2) * (eta * ((1 + u) * g)) + eta).
      * right. ring.
      * lra.
  - set (na := length (terms a)) in *. pose proof (terms_nonempty a) as La. fold na in La. cbv zeta in IHa.
    change (length (j :: terms a)) with (S na).
    change (sum (fun j => x j * y j) (j :: terms a)) with (x j * y j + sum (fun j => x j * y j) (terms a)).
    change (sum (fun j => Rabs (x j * y j)) (j :: terms a)) with (Rabs (x j * y j) + sum (fun j => Rabs (x j * y j)) (terms a)).
    set (sa := sum (fun j => x j * y j) (terms a)) in *.
    set (aa := sum (fun j => Rabs (x j * y j)) (terms a)) in *.
    assert (Pa : 0 <= aa) by (apply sum_nonneg; intros; apply Rabs_pos).
    assert (Sa : Rabs sa <= aa) by apply sum_abs.
    assert (G1 : 1 <= (1 + u) ^ na) by (apply rise_ge_1; auto).
    set (g := (1 + u) ^ na) in *. change ((1 + u) ^ S na) with ((1 + u) * g). rewrite S_INR.
    assert (Na : 1 <= INR na) by (change 1 with (INR 1); apply le_INR; auto). set (ia := INR na) in *.
    pose proof (Rabs_pos (x j * y j)) as P. set (p := Rabs (x j * y j)) in *.
    eapply Rle_trans.
    + apply (rounded_error _ _ _ ((g - 1) * (p + aa) + (2 * ia - 1) * (eta * g)) (p + aa) H).
      * replace (x j * y j + ra - (x j * y j + sa)) with (ra - sa) by ring. nra.
      * eapply Rle_trans; [apply Rabs_triang|]. fold p. lra.
    + assert (eta <= eta * ((1 + u) * g)).
      { rewrite <- (Rmult_1_r eta) at 1. apply Rmult_le_compat_l; auto. nra. }
      apply Rle_trans with (((1 + u) * g - 1) * (p + aa) + (2 * ia - 1) * (eta * ((1 + u) * g)) + eta).
      * right. ring.
      * lra.
Qed.

Theorem total_error x t r : (forall j, In j (terms t) -> 0 <= x j) -> total u x t r ->
  let n := (length (terms t) - 1)%nat in
  (1 - u) ^ n * sum x (terms t) <= r <= (1 + u) ^ n * sum x (terms t).
Proof.
  intros P H. cbv zeta. induction H as [j|a b ra rb r Ha IHa Hb IHb H].
  - simpl. lra.
  - simpl in *. specialize (IHa (fun j I => P j (in_or_app _ _ _ (or_introl I)))).
    specialize (IHb (fun j I => P j (in_or_app _ _ _ (or_intror I)))).
    rewrite app_length, sum_app. pose proof (terms_nonempty a) as La. pose proof (terms_nonempty b) as Lb.
    assert (Pa : 0 <= sum x (terms a)) by (apply sum_nonneg; intros; apply P, in_or_app; auto).
    assert (Pb : 0 <= sum x (terms b)) by (apply sum_nonneg; intros; apply P, in_or_app; auto).
    set (sa := sum x (terms a)) in *. set (sb := sum x (terms b)) in *.
    set (na := (length (terms a) - 1)%nat) in *. set (nb := (length (terms b) - 1)%nat) in *.
    set (n := (na + nb)%nat). replace (length (terms a) + length (terms b) - 1)%nat with (S n) by lia.
    assert ((1 + u) ^ na <= (1 + u) ^ n) by (apply rise_mono; auto; lia).
    assert ((1 + u) ^ nb <= (1 + u) ^ n) by (apply rise_mono; auto; lia).
    assert ((1 - u) ^ n <= (1 - u) ^ na) by (apply shrink_mono; auto; lia).
    assert ((1 - u) ^ n <= (1 - u) ^ nb) by (apply shrink_mono; auto; lia).
    pose proof (shrink_pos u u_small n).
    set (g := (1 + u) ^ n) in *. set (h := (1 - u) ^ n) in *. simpl pow. fold g. fold h.
    assert (Lo : h * (sa + sb) <= ra + rb) by nra.
    assert (Hi : ra + rb <= g * (sa + sb)) by nra.
    assert (Q : 0 <= ra + rb) by nra.
    unfold rounded in H. rewrite (Rabs_pos_eq (ra + rb) Q) in H. apply Rabs_le_inv in H.
    split.
    + apply Rle_trans with ((1 - u) * (ra + rb)); [|lra]. rewrite Rmult_assoc. apply Rmult_le_compat_l; lra.
    + apply Rle_trans with ((1 + u) * (ra + rb)); [lra|]. rewrite Rmult_assoc. apply Rmult_le_compat_l; lra.
Qed.
End Sums.

(** Three roundings to nearest, each of relative error u / (1 + u), err together by at most 3u: the scale 1/√d, and an
    exponent that is multiplied by a rounded log₂ e. *)
Theorem three_roundings u a b c : 0 <= u -> u <= 1 / 64 ->
  Rabs a <= u / (1 + u) -> Rabs b <= u / (1 + u) -> Rabs c <= u / (1 + u) ->
  Rabs ((1 + a) * (1 + b) * (1 + c) - 1) <= 3 * u.
Proof.
  intros P S A B C. set (v := u / (1 + u)) in *.
  assert (V : v * (1 + u) = u) by (unfold v; field; lra).
  assert (0 <= v) by (unfold v, Rdiv; apply Rmult_le_pos; [lra|left; apply Rinv_0_lt_compat; lra]).
  assert (v <= u) by nra.
  assert (E : u = v + v * u) by lra.
  assert (Q : v * v <= v * u) by (apply Rmult_le_compat_l; auto).
  assert (T : 3 * v + 3 * v * v + v * v * v <= 3 * u).
  { assert (v * v * v <= v * v * u) by (apply Rmult_le_compat_l; nra).
    assert (X : v * u = v * (v + v * u)) by (rewrite <- E; reflexivity).
    assert (0 <= v * v * u) by nra. lra. }
  apply Rabs_le_inv in A. apply Rabs_le_inv in B. apply Rabs_le_inv in C.
  apply Rabs_le. split.
  - assert ((1 - v) * (1 - v) <= (1 + a) * (1 + b)) by nra.
    assert ((1 - v) * (1 - v) * (1 - v) <= (1 + a) * (1 + b) * (1 + c))
      by (apply Rmult_le_compat; try lra; apply Rmult_le_pos; lra).
    assert (1 - 3 * v <= (1 - v) * (1 - v) * (1 - v)) by nra. lra.
  - assert ((1 + a) * (1 + b) <= (1 + v) * (1 + v)) by nra.
    assert (0 <= (1 + a) * (1 + b)) by nra.
    assert ((1 + a) * (1 + b) * (1 + c) <= (1 + v) * (1 + v) * (1 + v)) by (apply Rmult_le_compat; lra). lra.
Qed.
