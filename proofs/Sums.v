(** Finite sums of real numbers over lists. *)
From Coq Require Import Reals List Lra Permutation.
Import ListNotations.
Open Scope R_scope.

Definition sum {A} (f : A -> R) (l : list A) : R := fold_right (fun x s => f x + s) 0 l.

Lemma Rabs_le_inv x y : Rabs x <= y -> - y <= x <= y.
Proof. unfold Rabs. destruct (Rcase_abs x); lra. Qed.

Section Sums.
Context {A : Type}.
Implicit Types (f g : A -> R) (l : list A).

Lemma sum_ext f g l : (forall x, In x l -> f x = g x) -> sum f l = sum g l.
Proof. induction l as [|x l IH]; simpl; intros H; [reflexivity|]. rewrite H, IH; auto. Qed.

Lemma sum_plus f g l : sum (fun x => f x + g x) l = sum f l + sum g l.
Proof. induction l; simpl; lra. Qed.

Lemma sum_minus f g l : sum (fun x => f x - g x) l = sum f l - sum g l.
Proof. induction l; simpl; lra. Qed.

Lemma sum_scal c f l : sum (fun x => c * f x) l = c * sum f l.
Proof. induction l; simpl; lra. Qed.

Lemma sum_scal_r c f l : sum (fun x => f x * c) l = sum f l * c.
Proof. induction l; simpl; lra. Qed.

Lemma sum_div c f l : sum (fun x => f x / c) l = sum f l / c.
Proof. unfold Rdiv. apply sum_scal_r. Qed.

Lemma sum_zero l : sum (fun _ => 0) l = 0.
Proof. induction l; simpl; lra. Qed.

Lemma sum_const c l : sum (fun _ => c) l = INR (length l) * c.
Proof.
  induction l as [|x l IH]; [simpl; lra|]. change (length (x :: l)) with (S (length l)). rewrite S_INR.
  simpl sum. lra.
Qed.

Lemma sum_app f l l' : sum f (l ++ l') = sum f l + sum f l'.
Proof. induction l; simpl; lra. Qed.

Lemma sum_map {B} (h : B -> A) f (l : list B) : sum f (map h l) = sum (fun x => f (h x)) l.
Proof. induction l; simpl; congruence. Qed.

Lemma sum_permutation f l l' : Permutation l l' -> sum f l = sum f l'.
Proof. induction 1; simpl; lra. Qed.

Lemma sum_le f g l : (forall x, In x l -> f x <= g x) -> sum f l <= sum g l.
Proof.
  induction l as [|x l IH]; simpl; intros H; [lra|].
  specialize (IH (fun y Hy => H y (or_intror Hy))). specialize (H x (or_introl eq_refl)). lra.
Qed.

Lemma sum_nonneg f l : (forall x, In x l -> 0 <= f x) -> 0 <= sum f l.
Proof. intros H. rewrite <- (sum_zero l). apply sum_le, H. Qed.

Lemma sum_pos f l : l <> [] -> (forall x, In x l -> 0 < f x) -> 0 < sum f l.
Proof.
  destruct l as [|x l]; [congruence|]. intros _ H. simpl.
  pose proof (H x (or_introl eq_refl)).
  pose proof (sum_nonneg f l (fun y Hy => Rlt_le _ _ (H y (or_intror Hy)))). lra.
Qed.

Lemma sum_abs f l : Rabs (sum f l) <= sum (fun x => Rabs (f x)) l.
Proof.
  induction l as [|x l IH]; simpl; [rewrite Rabs_R0; lra|].
  eapply Rle_trans; [apply Rabs_triang|]. lra.
Qed.

Lemma sum_term f l x : In x l -> (forall y, In y l -> 0 <= f y) -> f x <= sum f l.
Proof.
  induction l as [|y l IH]; simpl; [tauto|]. intros [->|I] H.
  - pose proof (sum_nonneg f l (fun z Hz => H z (or_intror Hz))). lra.
  - pose proof (H y (or_introl eq_refl)). specialize (IH I (fun z Hz => H z (or_intror Hz))). lra.
Qed.

(** The Cauchy–Schwarz inequality, with weights f of at least 0. *)
Lemma cauchy_schwarz f g l : (forall x, In x l -> 0 <= f x) ->
  sum (fun x => f x * Rabs (g x)) l <= sqrt (sum f l * sum (fun x => f x * (g x * g x)) l).
Proof.
  intros H. set (a := sum f l). set (b := sum (fun x => f x * Rabs (g x)) l).
  set (c := sum (fun x => f x * (g x * g x)) l).
  assert (Pa : 0 <= a) by (apply sum_nonneg; auto).
  assert (Pb : 0 <= b).
  { apply sum_nonneg. intros x I. pose proof (H x I). pose proof (Rabs_pos (g x)). nra. }
  assert (Pc : 0 <= c).
  { apply sum_nonneg. intros x I. pose proof (H x I). pose proof (Rle_0_sqr (g x)). unfold Rsqr in *. nra. }
  assert (Q : forall t, 0 <= a * (t * t) - 2 * t * b + c).
  { intros t. replace (a * (t * t) - 2 * t * b + c)
      with (sum (fun x => f x * ((t - Rabs (g x)) * (t - Rabs (g x)))) l).
    - apply sum_nonneg. intros x I. pose proof (H x I). pose proof (Rle_0_sqr (t - Rabs (g x))).
      unfold Rsqr in *. nra.
    - rewrite (sum_ext _ (fun x => (t * t) * f x + ((- 2 * t) * (f x * Rabs (g x)) + f x * (g x * g x)))).
      + rewrite !sum_plus, !sum_scal. fold a b c. ring.
      + intros x _. assert (E : Rabs (g x) * Rabs (g x) = g x * g x) by (rewrite <- Rabs_mult; apply Rabs_pos_eq, Rle_0_sqr).
        replace (f x * (g x * g x)) with (f x * (Rabs (g x) * Rabs (g x))) by (rewrite E; reflexivity). ring. }
  assert (D : b * b <= a * c).
  { destruct (Req_dec a 0) as [Z|N].
    - rewrite Z in *. destruct (Rle_lt_or_eq_dec 0 b Pb) as [B|<-]; [|lra].
      specialize (Q ((c + 1) / (2 * b))). replace (2 * ((c + 1) / (2 * b)) * b) with (c + 1) in Q by (field; lra). lra.
    - specialize (Q (b / a)). replace (a * (b / a * (b / a)) - 2 * (b / a) * b + c) with (c - b * b / a) in Q by (field; auto).
      assert (b * b / a * a <= c * a) by (apply Rmult_le_compat_r; lra).
      replace (b * b / a * a) with (b * b) in H0 by (field; auto). lra. }
  rewrite <- (sqrt_square b Pb). apply sqrt_le_1_alt, D.
Qed.

End Sums.

Lemma sum_product {A B} (f : A -> R) (g : B -> R) l l' :
  sum f l * sum g l' = sum (fun x => sum (fun y => f x * g y) l') l.
Proof.
  induction l as [|x l IH]; simpl; [lra|]. rewrite <- IH, sum_scal. lra.
Qed.

Lemma sum_exchange {A B} (f : A -> B -> R) l l' :
  sum (fun x => sum (fun y => f x y) l') l = sum (fun y => sum (fun x => f x y) l) l'.
Proof.
  induction l as [|x l IH]; simpl; [symmetry; apply sum_zero|]. rewrite IH, sum_plus. reflexivity.
Qed.
