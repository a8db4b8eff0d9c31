// The positions of x that the adjoint computes. Position p meets tap t where p + pad - t * dilation is a multiple of the
// stride. Positions are sorted into PD * PH * PW phases, by (p + pad) % PD and so on, each of which meets only every
// PD-th tap; what of the stride that leaves is RD. A slice is a group and a phase.

const PHASES = PD * PH * PW;

fn phase_d(slice: u32) -> u32 { return slice % PHASES / (PH * PW); }

fn phase_h(slice: u32) -> u32 { return slice % PHASES / PW % PH; }

fn phase_w(slice: u32) -> u32 { return slice % PW; }

// The least (p + pad) / phases of a phase.
fn first_of(phase: u32, phases: u32, pad: i32) -> u32 { return (u32(pad) + phases - 1u - phase) / phases; }
