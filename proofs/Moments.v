(** Mean and variance of the dot product of two random vectors, over finite distributions. *)
From Coq Require Import Reals List Lra Lia Arith Bool.
From attnspec Require Import Sums.
Import ListNotations.
Open Scope R_scope.

(** The outcomes are listed in [omega]; outcome w has probability [p w]. *)
Definition mean {W} (p : W -> R) (omega : list W) (x : W -> R) : R := sum (fun w => p w * x w) omega.

Definition variance {W} (p : W -> R) (omega : list W) (x : W -> R) : R :=
  mean p omega (fun w => (x w - mean p omega x) * (x w - mean p omega x)).

Definition dot {W} (d : nat) (q k : nat -> W -> R) (w : W) : R := sum (fun c => q c w * k c w) (seq 0 d).

(** Kronecker's δ. *)
Definition same (a b : nat) : R := if Nat.eqb a b then 1 else 0.

(** Uncorrelated coordinates with means [mu], each of variance [sigma]². *)
Definition uncorrelated {W} (p : W -> R) omega d (mu : nat -> R) sigma (x : nat -> W -> R) : Prop :=
  (forall a, (a < d)%nat -> mean p omega (x a) = mu a) /\
  (forall a b, (a < d)%nat -> (b < d)%nat ->
     mean p omega (fun w => x a w * x b w) = mu a * mu b + sigma * sigma * same a b).

(** The consequences of the independence of q and k that the proofs use. *)
Definition independent {W} (p : W -> R) omega d (q k : nat -> W -> R) : Prop :=
  (forall a, (a < d)%nat -> mean p omega (fun w => q a w * k a w) = mean p omega (q a) * mean p omega (k a)) /\
  (forall a b, (a < d)%nat -> (b < d)%nat ->
     mean p omega (fun w => (q a w * q b w) * (k a w * k b w)) =
     mean p omega (fun w => q a w * q b w) * mean p omega (fun w => k a w * k b w)).

Section Mean.
Context {W : Type} (p : W -> R) (omega : list W).

Lemma mean_ext x y : (forall w, x w = y w) -> mean p omega x = mean p omega y.
Proof. intros H. apply sum_ext. intros. rewrite H. reflexivity. Qed.

Lemma mean_plus x y : mean p omega (fun w => x w + y w) = mean p omega x + mean p omega y.
Proof. unfold mean. rewrite <- sum_plus. apply sum_ext. intros. ring. Qed.

Lemma mean_scal c x : mean p omega (fun w => c * x w) = c * mean p omega x.
Proof. unfold mean. rewrite <- sum_scal. apply sum_ext. intros. ring. Qed.

Lemma mean_const c : sum p omega = 1 -> mean p omega (fun _ => c) = c.
Proof. intros H. unfold mean. rewrite sum_scal_r, H. ring. Qed.

Lemma mean_sum {I} (f : I -> W -> R) (l : list I) :
  mean p omega (fun w => sum (fun i => f i w) l) = sum (fun i => mean p omega (f i)) l.
Proof.
  unfold mean. rewrite <- sum_exchange. apply sum_ext. intros w _. rewrite <- sum_scal. reflexivity.
Qed.

Lemma variance_moments x : sum p omega = 1 ->
  variance p omega x = mean p omega (fun w => x w * x w) - mean p omega x * mean p omega x.
Proof.
  intros H. unfold variance. set (m := mean p omega x).
  rewrite (mean_ext _ (fun w => x w * x w + ((-2 * m) * x w + m * m))) by (intros; ring).
  rewrite mean_plus, mean_plus, mean_scal, mean_const by auto. fold m. ring.
Qed.
End Mean.

Lemma sum_same d (f : nat -> R) a : (a < d)%nat -> sum (fun b => f b * same a b) (seq 0 d) = f a.
Proof.
  intros L. assert (G : forall s n, sum (fun b => f b * same a b) (seq s n) =
    if Nat.leb s a && Nat.ltb a (s + n) then f a else 0).
  { clear. intros s n. revert s. induction n as [|n IH]; intros s.
    - simpl. destruct (Nat.leb_spec s a); simpl; [|reflexivity]. destruct (Nat.ltb_spec a (s + 0)); [lia|reflexivity].
    - simpl. rewrite IH. unfold same. destruct (Nat.eqb_spec a s) as [->|N].
      + destruct (Nat.leb_spec (S s) s); [lia|]. destruct (Nat.leb_spec s s); [|lia].
        destruct (Nat.ltb_spec s (s + S n)); [|lia]. simpl. ring.
      + destruct (Nat.leb_spec (S s) a), (Nat.leb_spec s a); try lia; simpl;
        destruct (Nat.ltb_spec a (S s + n)), (Nat.ltb_spec a (s + S n)); try lia;
        destruct (Nat.ltb_spec a (S (s + n))); try lia; ring. }
  rewrite G. destruct (Nat.leb_spec 0 a); [|lia]. destruct (Nat.ltb_spec a (0 + d)); [reflexivity|lia].
Qed.

Section Dot.
Context {W : Type} (p : W -> R) (omega : list W) (d : nat) (mu : nat -> R) (sigma : R) (q k : nat -> W -> R).
Hypothesis total : sum p omega = 1.
Hypothesis uncorrelated_q : uncorrelated p omega d mu sigma q.
Hypothesis uncorrelated_k : uncorrelated p omega d mu sigma k.
Hypothesis independence : independent p omega d q k.

Let square := sum (fun c => mu c * mu c) (seq 0 d).

(** E[qᵀk] = μᵀμ *)
Theorem dot_product_mean : mean p omega (dot d q k) = square.
Proof.
  unfold dot. rewrite mean_sum. apply sum_ext. intros c I. apply in_seq in I.
  destruct uncorrelated_q as [Mq _], uncorrelated_k as [Mk _], independence as [F _].
  rewrite F, Mq, Mk by lia. reflexivity.
Qed.

(** Var[qᵀk] = 2σ²μᵀμ + dσ⁴ *)
Theorem dot_product_variance :
  variance p omega (dot d q k) = 2 * sigma ^ 2 * square + INR d * sigma ^ 4.
Proof.
  rewrite variance_moments, dot_product_mean by auto.
  rewrite (mean_ext p omega _ (fun w => sum (fun a => sum (fun b => (q a w * q b w) * (k a w * k b w)) (seq 0 d)) (seq 0 d))).
  2:{ intros w. unfold dot. rewrite sum_product. apply sum_ext. intros a _. apply sum_ext. intros b _. ring. }
  rewrite mean_sum.
  destruct uncorrelated_q as [_ Cq], uncorrelated_k as [_ Ck], independence as [_ F].
  rewrite (sum_ext _ (fun a => mu a * mu a * square + 2 * sigma ^ 2 * (mu a * mu a) + sigma ^ 4)).
  - rewrite !sum_plus, sum_scal_r, sum_scal, sum_const, seq_length. fold square. ring.
  - intros a Ia. apply in_seq in Ia. rewrite mean_sum.
    rewrite (sum_ext _ (fun b => mu a * mu a * (mu b * mu b) +
      (2 * sigma ^ 2 * (mu a * mu b) + sigma ^ 4) * same a b)).
    + rewrite sum_plus, sum_scal, (sum_same d (fun b => 2 * sigma ^ 2 * (mu a * mu b) + sigma ^ 4)) by lia.
      fold square. ring.
    + intros b Ib. apply in_seq in Ib. rewrite F, Cq, Ck by lia. unfold same. destruct (Nat.eqb a b); ring.
Qed.

(** The scale 1/√d divides the variance by d. *)
Corollary scaled_dot_product_variance : (0 < d)%nat ->
  variance p omega (fun w => dot d q k w / sqrt (INR d)) = (2 * sigma ^ 2 * square + INR d * sigma ^ 4) / INR d.
Proof.
  intros P. assert (Pd : 0 < INR d) by (apply lt_0_INR; lia). rewrite <- dot_product_variance.
  assert (S : / INR d = / sqrt (INR d) * / sqrt (INR d)).
  { rewrite <- Rinv_mult, sqrt_sqrt by lra. reflexivity. }
  rewrite !variance_moments by auto. unfold Rdiv.
  rewrite (mean_ext p omega (fun w => dot d q k w * / sqrt (INR d)) (fun w => / sqrt (INR d) * dot d q k w)) by (intros; ring).
  rewrite (mean_ext p omega (fun w => dot d q k w * / sqrt (INR d) * (dot d q k w * / sqrt (INR d)))
    (fun w => / INR d * (dot d q k w * dot d q k w))) by (intros; rewrite S; ring).
  rewrite !mean_scal, S. ring.
Qed.
End Dot.
