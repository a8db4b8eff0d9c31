import {WebGPUError} from './errors.js';

/** Text to tokens and back, as a `tokenizer.json` of Hugging Face says: byte-level BPE (GPT-2, Llama 3, Qwen), and words. */

const INSTEAD = 'use the tokenizer of transformers.js, and give model.generate its ids';
const GPT2 = "'(?:[sdmt]|ll|ve|re)| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";

/** The characters that stand for bytes, as GPT-2 chose them. */
const CHARACTERS = (() => {
  const plain = (/** @type {number} */ b) => b > 32 && b < 127 || b > 160 && b !== 173;
  let next = 256;
  return Array.from({length: 256}, (_, b) => String.fromCodePoint(plain(b) ? b : next++));
})();
const BYTES = new Map(CHARACTERS.map((c, b) => [c, b]));

/** A pattern of the Rust library Oniguruma as JavaScript writes it: groups in which case is ignored. @param {string} pattern */
const expression = pattern => new RegExp(pattern.replace(/\(\?i:([^()]*)\)/g, (_, inside) =>
  `(?:${inside.replace(/[a-z]/g, (/** @type {string} */ c) => `[${c}${c.toUpperCase()}]`)})`), 'gu');

export class Tokenizer {
  /** @param {any} json the contents of tokenizer.json. Throws WebGPUError `unsupported` for kinds that this does not know. */
  constructor(json) {
    const {model, normalizer, pre_tokenizer: pre, decoder, added_tokens = [], post_processor: post} = json;
    const refuse = (/** @type {string} */ what) => { throw new WebGPUError('unsupported', `this tokenizer has ${what}, which is not known here: ${INSTEAD}`); };
    const all = (/** @type {any} */ part, /** @type {string} */ list) => !part ? [] : part.type === 'Sequence' ? part[list] : [part];
    if (!['BPE', 'WordLevel'].includes(model?.type)) refuse(`the model ${model?.type}`);
    if (model.dropout || model.continuing_subword_prefix || model.end_of_word_suffix || model.byte_fallback) refuse('options of BPE');
    this.bytes = false;
    /** @type {RegExp[]} */ this.splits = [];
    for (const p of all(pre, 'pretokenizers')) {
      if (p.type === 'ByteLevel' && !p.add_prefix_space) {
        this.bytes = true;
        if (p.use_regex !== false) this.splits.push(expression(GPT2));
      } else if (p.type === 'Split' && p.behavior === 'Isolated' && !p.invert && p.pattern.Regex) this.splits.push(expression(p.pattern.Regex));
      else refuse(`the pre-tokenizer ${p.type}`);
    }
    for (const n of all(normalizer, 'normalizers')) if (!['NFC', 'NFKC', 'NFD', 'NFKD'].includes(n.type)) refuse(`the normalizer ${n.type}`);
    for (const d of all(decoder, 'decoders')) if (!['ByteLevel', 'Fuse'].includes(d.type)) refuse(`the decoder ${d.type}`);
    for (const p of all(post, 'processors')) if (p.type !== 'ByteLevel' && !(p.type === 'TemplateProcessing' && p.single.every((/** @type {any} */ s) => s.Sequence))) refuse(`the post-processor ${p.type}`);
    if (model.type === 'BPE' && !this.bytes) refuse('BPE of characters');
    /** @type {string[]} */ this.forms = all(normalizer, 'normalizers').map((/** @type {any} */ n) => n.type);
    /** @type {Map<string, number>} */ this.vocabulary = new Map(Object.entries(model.vocab));
    /** @type {Map<number, string>} */ this.tokens = new Map([...this.vocabulary].map(([token, id]) => [id, token]));
    /** @type {Map<string, number>} */ this.ranks = new Map((model.merges ?? []).map((/** @type {any} */ m, /** @type {number} */ k) => [Array.isArray(m) ? m.join(' ') : m, k]));
    this.whole = !!model.ignore_merges;
    /** @type {Map<string, number>} */ this.added = new Map(added_tokens.map((/** @type {any} */ t) => [t.content, t.id]));
    this.special = new Set(added_tokens.filter((/** @type {any} */ t) => t.special).map((/** @type {any} */ t) => t.id));
    const names = [...this.added.keys()].sort((a, b) => b.length - a.length).map(t => t.replace(/[\\^$.*+?()[\]{}|/-]/g, '\\$&'));
    this.names = names.length ? new RegExp(`(${names.join('|')})`, 'u') : null;
  }

  /** The tokens of a text. What is in no vocabulary is left out. @param {string} text @returns {number[]} */
  encode(text) {
    for (const form of this.forms) text = text.normalize(form);
    return (this.names ? text.split(this.names) : [text]).flatMap(part => {
      const id = this.added.get(part);
      return id !== undefined ? [id] : this.split(part).flatMap(piece => this.merged(piece));
    });
  }

  /** @param {string} text */
  split(text) {
    let pieces = text ? [text] : [];
    for (const pattern of this.splits) {
      pieces = pieces.flatMap(piece => {
        /** @type {string[]} */ const parts = [];
        let end = 0;
        for (const {0: found, index} of piece.matchAll(pattern)) {
          if (index > end) parts.push(piece.slice(end, index));
          if (found) parts.push(found);
          end = index + found.length;
        }
        if (end < piece.length) parts.push(piece.slice(end));
        return parts;
      });
    }
    return this.bytes ? pieces.map(piece => Array.from(new TextEncoder().encode(piece), b => CHARACTERS[b]).join('')) : pieces;
  }

  /** @param {string} piece @returns {number[]} */
  merged(piece) {
    const known = this.vocabulary.get(piece);
    if (known !== undefined && (this.whole || !this.ranks.size)) return [known];
    let parts = this.ranks.size ? [...piece] : [piece];
    for (;;) {
      let best = Infinity, pair = '';
      for (let k = 0; k + 1 < parts.length; k++) {
        const name = `${parts[k]} ${parts[k + 1]}`, rank = this.ranks.get(name);
        if (rank !== undefined && rank < best) { best = rank; pair = name; }
      }
      if (best === Infinity) break;
      /** @type {string[]} */ const next = [];
      for (let k = 0; k < parts.length; k++) next.push(`${parts[k]} ${parts[k + 1]}` === pair ? parts[k] + parts[++k] : parts[k]);
      parts = next;
    }
    return parts.map(part => this.vocabulary.get(part)).filter(id => id !== undefined);
  }

  /**
   * The text of tokens. A character whose bytes are not complete yet is U+FFFD.
   * @param {ArrayLike<number | bigint>} ids @param {{skip_special_tokens?: boolean}} [options]
   */
  decode(ids, {skip_special_tokens = true} = {}) {
    const names = new Map([...this.added].map(([name, id]) => [id, name])), decoder = new TextDecoder();
    let text = '';
    /** @type {number[]} */ let bytes = [];
    const flush = () => { text += decoder.decode(Uint8Array.from(bytes)); bytes = []; };
    for (const id of Array.from(ids, Number)) {
      const name = names.get(id), token = this.tokens.get(id) ?? '';
      if (name !== undefined) {
        if (skip_special_tokens && this.special.has(id)) continue;
        flush();
        text += name;
      } else if (this.bytes) for (const c of token) bytes.push(/** @type {number} */ (BYTES.get(c)));
      else text += token;
    }
    flush();
    return text;
  }
}
