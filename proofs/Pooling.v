(** The change of pooled values by errors of the scores. *)
From Coq Require Import Reals List Lra Lia.
From attnspec Require Import Sums.
Import ListNotations.
Open Scope R_scope.

Lemma exp_le x y : x <= y -> exp x <= exp y.
Proof. intros [H|H]; [left; apply exp_increasing, H | right; rewrite H; reflexivity]. Qed.

Lemma expm1_bound e d : Rabs e <= d -> Rabs (exp e - 1) <= exp d - 1.
Proof.
  intros H. pose proof (Rabs_pos e). apply Rabs_le_inv in H.
  pose proof (exp_le _ _ (proj1 H)). pose proof (exp_le _ _ (proj2 H)).
  assert (exp d * exp (- d) = 1) by (rewrite <- exp_plus; replace (d + - d) with 0 by lra; apply exp_0).
  pose proof (exp_pos (- d)). assert (1 <= exp d) by (rewrite <- exp_0; apply exp_le; lra).
  apply Rabs_le. split; nra.
Qed.

Section Pooling.
(** Keys A with exact weights α, which sum to 1, and values v. Computed weights are proportional to α_j e^(η_j)
    with |η_j| ≤ δ_j. *)
Variables (A : list nat) (alpha v eta delta : nat -> R).
Hypothesis some : A <> [].
Hypothesis alpha_pos : forall j, In j A -> 0 < alpha j.
Hypothesis alpha_total : sum alpha A = 1.
Hypothesis bounded : forall j, In j A -> Rabs (eta j) <= delta j.

Let o := sum (fun j => alpha j * v j) A.
Let W := sum (fun j => alpha j * exp (eta j)) A.
Let L := sum (fun j => alpha j * exp (- delta j)) A.
Let f := fun j => alpha j * (exp (delta j) - 1) / L.
Let moved := fun j => alpha j * exp (eta j) / W.
Let o' := sum (fun j => moved j * v j) A.

Lemma least_sum_pos : 0 < L.
Proof. apply sum_pos; auto. intros j I. pose proof (alpha_pos j I). pose proof (exp_pos (- delta j)). nra. Qed.

Lemma least_sum_least : L <= W.
Proof.
  apply sum_le. intros j I. pose proof (alpha_pos j I). pose proof (bounded j I) as B. apply Rabs_le_inv in B.
  apply Rmult_le_compat_l; [lra|]. apply exp_le. lra.
Qed.

Lemma W_pos : 0 < W.
Proof. pose proof least_sum_pos. pose proof least_sum_least. lra. Qed.

Lemma moved_nonneg j : In j A -> 0 < moved j.
Proof.
  intros I. unfold moved. apply Rdiv_lt_0_compat; [|apply W_pos].
  pose proof (alpha_pos j I). pose proof (exp_pos (eta j)). nra.
Qed.

Lemma moved_total : sum moved A = 1.
Proof. unfold moved. rewrite sum_div. fold W. pose proof W_pos. field. lra. Qed.

Lemma f_nonneg j : In j A -> 0 <= f j.
Proof.
  intros I. unfold f, Rdiv. pose proof (alpha_pos j I). pose proof least_sum_pos as P.
  pose proof (bounded j I). pose proof (Rabs_pos (eta j)).
  assert (1 <= exp (delta j)) by (rewrite <- exp_0; apply exp_le; lra).
  apply Rmult_le_pos; [nra|]. left. apply Rinv_0_lt_compat, P.
Qed.

(** |o′ − o| ≤ Σⱼ αⱼ expm1(δⱼ) |vⱼ − o| / L *)
Theorem pooling_error : Rabs (o' - o) <= sum (fun j => f j * Rabs (v j - o)) A.
Proof.
  pose proof W_pos as PW. pose proof least_sum_pos as PL. pose proof least_sum_least as LW.
  assert (Z : sum (fun j => alpha j * (v j - o)) A = 0).
  { rewrite (sum_ext _ (fun j => alpha j * v j + (- o) * alpha j)) by (intros; ring).
    rewrite sum_plus, sum_scal, alpha_total. fold o. ring. }
  assert (E : o' - o = sum (fun j => alpha j * (exp (eta j) - 1) * (v j - o)) A / W).
  { unfold o', moved.
    rewrite (sum_ext (fun j => alpha j * (exp (eta j) - 1) * (v j - o))
      (fun j => W * (alpha j * exp (eta j) / W * v j) + ((- o) * (alpha j * exp (eta j)) + (-1) * (alpha j * (v j - o))))).
    - rewrite !sum_plus, !sum_scal, Z. fold W. field. lra.
    - intros. field. lra. }
  rewrite E. unfold Rdiv. rewrite Rabs_mult, (Rabs_pos_eq (/ W)) by (left; apply Rinv_0_lt_compat, PW).
  apply Rle_trans with (sum (fun j => alpha j * (exp (delta j) - 1) * Rabs (v j - o)) A * / W).
  - apply Rmult_le_compat_r; [left; apply Rinv_0_lt_compat, PW|]. eapply Rle_trans; [apply sum_abs|].
    apply sum_le. intros j I. pose proof (alpha_pos j I). rewrite !Rabs_mult, (Rabs_pos_eq (alpha j)) by lra.
    pose proof (expm1_bound _ _ (bounded j I)). apply Rmult_le_compat_r; [apply Rabs_pos|].
    apply Rmult_le_compat_l; lra.
  - rewrite <- sum_scal_r. apply sum_le. intros j I.
    pose proof (f_nonneg j I) as F. unfold f, Rdiv in *. pose proof (Rabs_pos (v j - o)).
    assert (/ W <= / L) by (apply Rinv_le_contravar; lra).
    assert (N : 0 <= alpha j * (exp (delta j) - 1)).
    { apply Rmult_le_reg_r with (/ L); [apply Rinv_0_lt_compat, PL|]. lra. }
    replace (alpha j * (exp (delta j) - 1) * / L * Rabs (v j - o))
      with (alpha j * (exp (delta j) - 1) * Rabs (v j - o) * / L) by ring.
    apply Rmult_le_compat_l; auto. apply Rmult_le_pos; auto.
Qed.

(** |o′ − o| ≤ √(Σ fⱼ · Σ fⱼ (vⱼ − o)²), by the Cauchy–Schwarz inequality *)
Corollary pooling_error_squares :
  Rabs (o' - o) <= sqrt (sum f A * sum (fun j => f j * ((v j - o) * (v j - o))) A).
Proof. eapply Rle_trans; [apply pooling_error|]. apply cauchy_schwarz, f_nonneg. Qed.

(** |o′ − o| ≤ max |vⱼ − o| *)
Theorem pooling_error_farthest F : (forall j, In j A -> Rabs (v j - o) <= F) -> Rabs (o' - o) <= F.
Proof.
  intros H. replace (o' - o) with (sum (fun j => moved j * (v j - o)) A).
  - eapply Rle_trans; [apply sum_abs|]. replace F with (sum (fun j => moved j * F) A).
    + apply sum_le. intros j I. rewrite Rabs_mult, (Rabs_pos_eq (moved j)) by (left; apply moved_nonneg, I).
      apply Rmult_le_compat_l; auto. left. apply moved_nonneg, I.
    + rewrite sum_scal_r, moved_total. ring.
  - rewrite (sum_ext _ (fun j => moved j * v j + (- o) * moved j)) by (intros; ring).
    rewrite sum_plus, sum_scal, moved_total. fold o'. ring.
Qed.

(** A bound of Σ |vⱼ|, each with the weight that a kernel computes. *)
Theorem mass_moved V : (forall j, In j A -> Rabs (v j) <= V) ->
  sum (fun j => moved j * Rabs (v j)) A <=
    Rmin (sum (fun j => alpha j * Rabs (v j)) A / L + sum (fun j => f j * Rabs (v j)) A) V.
Proof.
  intros H. pose proof W_pos as PW. pose proof least_sum_pos as PL. pose proof least_sum_least as LW.
  apply Rmin_glb.
  - rewrite <- sum_div, <- sum_plus. apply sum_le. intros j I. unfold moved, f, Rdiv.
    pose proof (alpha_pos j I). pose proof (Rabs_pos (v j)). pose proof (bounded j I) as B. apply Rabs_le_inv in B.
    assert (exp (eta j) <= exp (delta j)) by (apply exp_le; lra).
    assert (/ W <= / L) by (apply Rinv_le_contravar; lra).
    assert (0 < / W) by (apply Rinv_0_lt_compat, PW). pose proof (exp_pos (eta j)).
    assert (exp (eta j) * / W <= exp (delta j) * / L) by (apply Rmult_le_compat; lra).
    assert (0 <= alpha j * Rabs (v j)) by (apply Rmult_le_pos; lra).
    replace (alpha j * exp (eta j) * / W * Rabs (v j)) with (alpha j * Rabs (v j) * (exp (eta j) * / W)) by ring.
    replace (alpha j * Rabs (v j) * / L + alpha j * (exp (delta j) - 1) * / L * Rabs (v j))
      with (alpha j * Rabs (v j) * (exp (delta j) * / L)) by ring.
    apply Rmult_le_compat_l; auto.
  - replace V with (sum (fun j => moved j * V) A).
    + apply sum_le. intros j I. apply Rmult_le_compat_l; auto. left. apply moved_nonneg, I.
    + rewrite sum_scal_r, moved_total. ring.
Qed.
End Pooling.
