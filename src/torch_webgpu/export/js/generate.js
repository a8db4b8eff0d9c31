/**
 * @typedef {ArrayLike<number | bigint>} Prompt
 * @typedef {{max_new_tokens?: number, temperature?: number, top_k?: number, top_p?: number, seed?: number | bigint,
 *   signal?: AbortSignal}} GenerateOptions
 *   `temperature`: 0, the default, takes the most probable token. `top_k`: 0 leaves all tokens. `seed`: of the draws.
 */

/**
 * Generates tokens after a prompt, one by one, until a token ends the text or there is no more room; after several
 * prompts side by side, an array a step, with null for a text that has ended. The next steps are encoded before the
 * tokens of the last ones are read: one, then two, then as many as a step can tell.
 * @param {import('./model.js').Model} model
 * @param {Prompt | Prompt[]} ids the prompt, or at most as many as the batch that was exported
 * @param {GenerateOptions} [options]
 * @returns {AsyncGenerator<any>}
 */
export async function* generate(model, ids, {max_new_tokens = Infinity, temperature = 0, top_k = 0, top_p = 1, seed, signal} = {}) {
  const about = model.metadata.generation;
  if (!about) throw new TypeError('this model was not exported with export_generation');
  const several = typeof ids[0] === 'object', batch = about.batch_size ?? 1;
  const prompts = Array.from(/** @type {Prompt[]} */ (several ? ids : [ids]), prompt => Array.from(prompt, Number));
  if (prompts.length > batch) throw new RangeError(`${prompts.length} prompts: this model was exported for ${batch} at once`);
  const length = Math.max(...prompts.map(prompt => prompt.length)), room = about.max_length - length;
  for (const prompt of prompts) {
    if (!prompt.length || room < 1) throw new RangeError(`a prompt of ${prompt.length && length} tokens: 1 to ${about.max_length - 1} will do`);
    if (!prompt.every(id => Number.isInteger(id) && id >= 0 && id < about.vocab_size)) throw new RangeError(`tokens are integers from 0 to ${about.vocab_size - 1}`);
  }
  if (model.generating) throw new Error('this model is generating already: it has one cache');
  model.generating = true;
  try {
    if (seed !== undefined) model.manual_seed(seed);
    await model.state.reset();
    const rows = Array.from({length: batch}, (_, k) => prompts[k] ?? prompts[0]), padding = rows.map(row => length - row.length);
    for (let at = 0; at < length;) {
      signal?.throwIfAborted();
      const size = about.prefill.findLast((/** @type {number} */ n) => n <= length - at);
      const input_ids = rows.map((row, k) => Array.from({length: size}, (_, i) => row[at + i - padding[k]] ?? 0));
      await model.run(`prefill_${size}`, batch > 1 ? {input_ids, padding} : {input_ids}, {outputs: []});
      at += size;
    }
    const program = top_k > 0 || top_p < 1 ? 'sample' : 'decode', sampling = [temperature, top_k, top_p], ended = prompts.map(() => false);
    for (let left = Math.min(max_new_tokens, room), ahead = 1; left > 0; ahead = Math.min(2 * ahead, about.recent)) {
      signal?.throwIfAborted();
      const count = Math.min(ahead, left);
      const runs = Array.from({length: count}, (_, k) => model.run(program, {sampling}, {outputs: k < count - 1 ? [] : ['recent']}));
      const recent = Array.from((await Promise.all(runs))[count - 1].recent.data.slice(-count * batch), Number);
      for (let k = 0; k < count; k++) {
        const tokens = prompts.map((_, row) => {
          const token = recent[k * batch + row];
          ended[row] ||= about.eos_token_id.includes(token);
          return ended[row] ? null : token;
        });
        if (ended.every(Boolean)) return;
        yield several ? tokens : tokens[0];
        if (signal?.aborted) signal.throwIfAborted();
      }
      left -= count;
    }
  } finally {
    model.generating = false;
  }
}
