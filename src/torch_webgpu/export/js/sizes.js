import {WebGPUError} from './errors.js';
import {encode, isTensor, nestedShape, numel, Tensor} from './tensor.js';

/**
 * @typedef {import('./manifest.js').Manifest} Manifest
 * @typedef {import('./manifest.js').ProgramSpec} ProgramSpec
 * @typedef {{name: string, sizes: number[], smallest: number, padded: Record<string, Record<string, [number, number]>> | null,
 *   places: Record<string, number[]>}} SizeSpec a size that varies; `padded`: how outputs follow from it, where zeros may be added
 * @typedef {{sizes: SizeSpec[], programs: Record<string, string>}} DynamicSpec the programs by their sizes, such as 1x16
 * @typedef {Record<string, any>} Feeds
 */

/** The shape that a feed has by itself; of a typed array it is not known. @param {any} value @returns {number[] | null} */
const ownShape = value => isTensor(value) ? value.shape : ArrayBuffer.isView(value) ? null : nestedShape(value);

/**
 * The sizes of what a page gives, in the order of the manifest.
 * @param {string} name of the program @param {DynamicSpec} spec @param {ProgramSpec} program any of its sizes @param {Feeds} feeds
 */
function sizesOf(name, spec, program, feeds) {
  /** @type {Map<string, number>} */ const known = new Map();
  const given = program.inputs.map(({name: input, shape}) => ({
    input, feed: feeds[input], shape: /** @type {(number | string)[]} */ (shape.map((n, d) => spec.sizes.find(s => s.places[input]?.includes(d))?.name ?? n)),
  }));
  for (const {feed, shape} of given) {
    const own = ownShape(feed);
    if (own?.length === shape.length) shape.forEach((n, d) => { if (typeof n === 'string' && !known.has(n)) known.set(n, own[d]); });
  }
  for (const {input, feed, shape} of given) {
    if (!ArrayBuffer.isView(feed)) continue;
    const open = shape.filter(n => typeof n === 'string' && !known.has(n)), rest = numel(shape.map(n => typeof n === 'string' ? known.get(n) ?? 1 : n));
    if (open.length === 1) known.set(/** @type {string} */ (open[0]), /** @type {any} */ (feed).length / rest);
    else if (open.length) throw new TypeError(`${input} is an array without a shape, and ${open.join(' and ')} may vary: give new Tensor(dtype, data, shape)`);
  }
  return spec.sizes.map(s => {
    const n = known.get(s.name);
    if (n === undefined || !Number.isInteger(n)) throw new TypeError(`${name}: the feeds do not say ${s.name}`);
    return n;
  });
}

/** The elements of an array [shape], within one of another shape: cut, or with zeros after them. @param {any} data @param {number[]} shape @param {number[]} wanted */
function reshaped(data, shape, wanted) {
  const result = new data.constructor(numel(wanted)), row = Math.min(shape.at(-1) ?? 1, wanted.at(-1) ?? 1);
  const outer = shape.map((n, d) => Math.min(n, wanted[d])).slice(0, -1), at = outer.map(() => 0);
  for (let k = 0; k < numel(outer); k++) {
    let from = 0, to = 0;
    at.forEach((i, d) => { from = from * shape[d] + i; to = to * wanted[d] + i; });
    result.set(data.subarray(from * (shape.at(-1) ?? 1), from * (shape.at(-1) ?? 1) + row), to * (wanted.at(-1) ?? 1));
    for (let d = at.length - 1; d >= 0 && ++at[d] === outer[d]; d--) at[d] = 0;
  }
  return result;
}

/** The programs of a manifest whose sizes vary. Throws WebGPUError `format` for what is none. */
export class Sizes {
  /** @param {Manifest} manifest */
  constructor({programs, dynamic = {}}) {
    const isObject = (/** @type {any} */ v) => typeof v === 'object' && v !== null && !Array.isArray(v);
    const isList = (/** @type {any} */ v, check = Number.isInteger) => Array.isArray(v) && v.every(e => check(e));
    const isTable = (/** @type {any} */ v, /** @type {(e: any) => boolean} */ check) => isObject(v) && Object.values(v).every(check);
    const size = (/** @type {any} */ s) => isObject(s) && typeof s.name === 'string' && isList(s.sizes) && Number.isInteger(s.smallest)
      && isTable(s.places, p => isList(p)) && (s.padded === null || isTable(s.padded, o => isTable(o, r => isList(r) && r.length === 2)));
    const program = (/** @type {any} */ d) => isObject(d) && isList(d.sizes, size) && isTable(d.programs, name => Object.hasOwn(programs, name));
    if (!isTable(dynamic, program)) throw new WebGPUError('format', 'plan.json: the sizes of a program are wrong');
    this.programs = programs;
    this.dynamic = dynamic;
  }

  /** Programs by name, those of one function once, and the sizes that vary. @returns {[string, ProgramSpec, SizeSpec[]][]} */
  list() {
    const sized = new Set(Object.values(this.dynamic).flatMap(d => Object.values(d.programs)));
    return [
      ...Object.entries(this.dynamic).map(([name, d]) => /** @type {[string, ProgramSpec, SizeSpec[]]} */ ([name, this.programs[Object.values(d.programs)[0]], d.sizes])),
      ...Object.entries(this.programs).filter(([name]) => !sized.has(name)).map(([name, p]) => /** @type {[string, ProgramSpec, SizeSpec[]]} */ ([name, p, []])),
    ];
  }

  /**
   * The program that serves what a page gives, the feeds padded for it, and what cuts its outputs again.
   * @param {string} name @param {Feeds} feeds
   * @returns {{name: string, feeds: Feeds, cut: (outputs: Record<string, Tensor>) => Record<string, Tensor>}}
   */
  chosen(name, feeds) {
    const spec = this.dynamic[name], whole = (/** @type {Record<string, Tensor>} */ outputs) => outputs;
    if (!spec) return {name, feeds, cut: whole};
    const sizes = sizesOf(name, spec, this.programs[Object.values(spec.programs)[0]], feeds);
    const taken = spec.sizes.map((s, k) => {
      const size = sizes[k], fit = s.sizes.find(n => s.padded ? n >= size : n === size);
      if (fit === undefined || size < s.smallest)
        throw new RangeError(`${name} takes ${s.name} ${s.padded ? `from ${s.smallest} to ${s.sizes.at(-1)}` : s.sizes.join(', ')}, not ${size}`);
      return fit;
    });
    const key = spec.programs[taken.join('x')];
    if (taken.every((n, k) => n === sizes[k])) return {name: key, feeds, cut: whole};
    const padded = {...feeds};
    for (const {name: input, dtype, shape} of this.programs[key].inputs) {
      const own = shape.map((n, d) => { const k = spec.sizes.findIndex(s => s.places[input]?.includes(d)); return k < 0 ? n : sizes[k]; });
      if (String(own) === String(shape)) continue;
      const feed = feeds[input];
      encode(input, dtype, own, feed); // says what does not fit
      const {data} = isTensor(feed) ? feed : new Tensor(dtype, ArrayBuffer.isView(feed) ? feed : feed.flat(Infinity), own);
      padded[input] = new Tensor(dtype, reshaped(data, own, shape), shape);
    }
    /** @param {Record<string, Tensor>} outputs */
    const cut = outputs => Object.fromEntries(Object.entries(outputs).map(([output, tensor]) => {
      const wanted = [...tensor.shape];
      spec.sizes.forEach((s, k) => { for (const [d, [factor, more]] of Object.entries(s.padded?.[output] ?? {})) wanted[+d] = factor * sizes[k] + more; });
      return [output, new Tensor(tensor.dtype, reshaped(tensor.data, tensor.shape, wanted), wanted)];
    }));
    return {name: key, feeds: padded, cut};
  }
}
