// The gradient of CTC's loss in the logarithm of a class's probability: that probability, less the share of the paths that
// go through the class at that step.

fn values(t: u32, n: u32, class_: u32) -> Values {
  let loss = neg_log_likelihood_load(P.neg_log_likelihood_offset + n * P.neg_log_likelihood_s_n);
  if (t >= steps_of(n) || (P.zero_infinity != 0u && isinf_f(loss))) { return Values(0.0); }
  let own = log_probs_load(log_probs_at(t, n, class_));
  let last = last_state(n);
  var through = select(0.0, nan_f(), isinf_f(loss));
  for (var state = 0u; state <= last; state += 1u) {
    if (class_at(n, state) == class_) {
      let to = log_alpha_load(P.log_alpha_offset + n * P.log_alpha_s_n + t * P.log_alpha_s_t + state);
      let from_ = log_beta_load(P.log_beta_offset + n * P.log_beta_s_n + t * P.log_beta_s_t + state);
      through += exp_f((to + loss) + (from_ - own)); // near each other: the two differences lose nothing
    }
  }
  return Values((exp_f(own) - through) * grad_load(P.grad_offset + n * P.grad_s_n));
}
