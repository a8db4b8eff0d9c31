// The negative log likelihood of each target, and the weight it counts with.

fn values(n: u32, h: u32, w: u32) -> Values {
  let index = target_load(target_at(n, h, w));
  if (i64_eq(index, i64_make(P.ignored_low, P.ignored_high))) { return Values(T(), T()); }
  let class_number = checked_index_l(P.op, index, P.classes);
  if (class_number >= P.classes) { return Values(T(), T()); }
  let share = weight_of(class_number);
  return Values(-share * input_load(input_at(n, h, w) + class_number * P.class_step), share);
}
