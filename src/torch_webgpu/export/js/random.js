const MASK = (1n << 64n) - 1n;

/**
 * The seed and the place in its stream (Philox 4×32-10) from which programs draw: the numbers are those of
 * `torch.manual_seed` with `device="webgpu"` in Python.
 */
export class Generator {
  seed = 0n;
  offset = 0n;

  /** @param {number | bigint} seed */
  manual_seed(seed) {
    this.seed = BigInt(seed) & MASK;
    this.offset = 0n;
  }

  /**
   * Writes the words of a run among the parameters, and goes on by what it draws.
   * @param {import('./manifest.js').ProgramSpec} program
   * @param {Uint32Array} params
   * @returns {[number, number]} the first word that is written, and the one after the last
   */
  draw({random, random_blocks}, params) {
    let first = params.length, end = 0;
    for (const [word, part, ahead] of random) {
      const value = part < 2 ? this.seed : this.offset + BigInt(ahead) & MASK;
      params[word] = Number(part & 1 ? value >> 32n : value & 0xffffffffn);
      first = Math.min(first, word);
      end = Math.max(end, word + 1);
    }
    this.offset = this.offset + BigInt(random_blocks) & MASK;
    return [first, end];
  }
}
