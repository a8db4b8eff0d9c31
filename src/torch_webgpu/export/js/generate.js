/**
 * @typedef {{max_new_tokens?: number, temperature?: number, top_k?: number, top_p?: number, seed?: number | bigint,
 *   signal?: AbortSignal}} GenerateOptions
 *   `temperature`: 0, the default, takes the most probable token. `top_k`: 0 leaves all tokens. `seed`: of the draws.
 */

/**
 * Generates tokens after a prompt, one by one, until a token ends the text or there is no more room. The next steps are
 * encoded before the tokens of the last ones are read: one, then two, then as many as a step can tell.
 * @param {import('./model.js').Model} model
 * @param {ArrayLike<number | bigint>} ids the prompt
 * @param {GenerateOptions} [options]
 * @returns {AsyncGenerator<number>}
 */
export async function* generate(model, ids, {max_new_tokens = Infinity, temperature = 0, top_k = 0, top_p = 1, seed, signal} = {}) {
  const about = model.metadata.generation;
  if (!about) throw new TypeError('this model was not exported with export_generation');
  const prompt = Array.from(ids, Number), room = about.max_length - prompt.length;
  if (!prompt.length || room < 1) throw new RangeError(`a prompt of ${prompt.length} tokens: 1 to ${about.max_length - 1} will do`);
  if (!prompt.every(id => Number.isInteger(id) && id >= 0 && id < about.vocab_size)) throw new RangeError(`tokens are integers from 0 to ${about.vocab_size - 1}`);
  if (model.generating) throw new Error('this model is generating already: it has one cache');
  model.generating = true;
  try {
    if (seed !== undefined) model.manual_seed(seed);
    await model.state.reset();
    for (let at = 0; at < prompt.length;) {
      signal?.throwIfAborted();
      const size = about.prefill.findLast((/** @type {number} */ n) => n <= prompt.length - at);
      await model.run(`prefill_${size}`, {input_ids: prompt.slice(at, at += size)}, {outputs: []});
    }
    const program = top_k > 0 || top_p < 1 ? 'sample' : 'decode', sampling = [temperature, top_k, top_p];
    for (let left = Math.min(max_new_tokens, room), ahead = 1; left > 0; ahead = Math.min(2 * ahead, about.recent)) {
      signal?.throwIfAborted();
      const count = Math.min(ahead, left);
      const runs = Array.from({length: count}, (_, k) => model.run(program, {sampling}, {outputs: k < count - 1 ? [] : ['recent']}));
      for (const token of (await Promise.all(runs))[count - 1].recent.data.slice(-count)) {
        if (about.eos_token_id.includes(Number(token))) return;
        yield Number(token);
        if (signal?.aborted) signal.throwIfAborted();
      }
      left -= count;
    }
  } finally {
    model.generating = false;
  }
}
