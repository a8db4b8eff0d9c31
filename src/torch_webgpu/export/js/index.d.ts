// The types of what pages import, for TypeScript. The modules' own types are checked from their JSDoc.

export type DType = 'float32' | 'float16' | 'bfloat16' | 'int64' | 'int32' | 'uint32' | 'int16' | 'uint16' | 'int8'
  | 'uint8' | 'bool' | 'complex64';

/** What an input can be made of: of a typed array the elements are taken in order. */
export type Feed = Tensor | Numbers;
export type Numbers = number | bigint | boolean | ArrayBufferView | Numbers[];

/** A tensor on the host, in C order. */
export class Tensor {
  /** Throws RangeError where `data` has another number of elements than `shape`. */
  constructor(dtype: DType, data: ArrayBufferView | ArrayLike<any>, shape: number[]);
  dtype: DType;
  shape: number[];
  /** A typed array: float16 and bfloat16 are a Float32Array, int64 a BigInt64Array, bool a Uint8Array. */
  data: any;
  /** The only element: a number, a bigint (int64) or a boolean. */
  item(): any;
  /** The elements in nested arrays. */
  tolist(): any[];
}

/**
 * `insecure` no https; `unsupported` a browser without WebGPU; `no-adapter` no GPU that it may use; `needs` a GPU without
 * what the model needs; `network`; `format` files that are not an export, or were changed; `compile` a kernel that the
 * browser refuses; `out-of-memory`; `index` an index out of range; `lost` the GPU is gone: load again; `gpu` anything else.
 */
export type Kind = 'insecure' | 'unsupported' | 'no-adapter' | 'needs' | 'network' | 'format' | 'compile'
  | 'out-of-memory' | 'index' | 'lost' | 'gpu';

export class WebGPUError extends Error {
  constructor(kind: Kind, message: string, cause?: unknown);
  kind: Kind;
}

/** Features and limits that a GPU has to have. */
export interface Requires {
  features: string[];
  limits: Record<string, number>;
}

/** What `progress_callback` is told: bytes of a file, kernels that are compiled, and that the model is ready. */
export type LoadProgress =
  | {status: 'progress', file: string, loaded: number, total: number, progress: number}
  | {status: 'compile', loaded: number, total: number}
  | {status: 'ready'};

export interface LoadOptions {
  progress_callback?: (event: LoadProgress) => void;
  signal?: AbortSignal;
  /** A device of the page's, which stays its own: `openDevice(requires)` opens one. */
  device?: GPUDevice;
  /** How an adapter is asked for, where there is no `device`. */
  adapter?: GPURequestAdapterOptions;
  /** Whether weights are kept for the next visit; true unless given. */
  cache?: boolean;
  /** "sha256-" and the hexadecimal digest of plan.json. */
  integrity?: string;
}

export interface TensorSignature {
  name: string;
  dtype: DType;
  /** A size that varies has a name. */
  shape: (number | string)[];
}

export interface Signature {
  inputs: TensorSignature[];
  outputs: TensorSignature[];
}

export interface RunOptions {
  /** The outputs that are read; the others stay on the GPU. All, unless given. */
  outputs?: string[];
}

/** Tokens of a text. */
export type Prompt = ArrayLike<number | bigint>;

export interface GenerateOptions {
  max_new_tokens?: number;
  /** 0, the default, takes the most probable token. */
  temperature?: number;
  /** 0, the default, leaves all tokens. */
  top_k?: number;
  top_p?: number;
  /** Of the draws. */
  seed?: number | bigint;
  signal?: AbortSignal;
}

export interface Tokenizer {
  encode(text: string): number[];
  decode(ids: ArrayLike<number | bigint>, options?: {skip_special_tokens?: boolean}): string;
}

/** A model that `torch.webgpu.export` wrote, loaded onto a GPU. Runs of one model queue up. */
export class Model {
  private constructor();
  /** Loads the folder at `url`. Throws WebGPUError, whose `kind` says what is wrong. */
  static load(url: string | URL, options?: LoadOptions): Promise<Model>;
  readonly device: GPUDevice;
  readonly requires: Requires;
  /** What was exported with `metadata=`. */
  readonly metadata: Record<string, any>;
  /** What each program takes and gives, by its name. */
  readonly signatures: Record<string, Signature>;
  readonly state: {
    /** The tensors that programs write. */
    readonly names: string[];
    /** Puts them back to what was exported. */
    reset(): Promise<void>;
  };
  /** Runs `forward`, or the only program. Resolves to its outputs by name. */
  run(feeds: Record<string, Feed>): Promise<Record<string, Tensor>>;
  run(program: string, feeds?: Record<string, Feed>, options?: RunOptions): Promise<Record<string, Tensor>>;
  /**
   * Tokens after a prompt, of a model that `export_generation` wrote; after several prompts an array a step, with null
   * for a text that has ended.
   */
  generate<T extends Prompt | Prompt[]>(ids: T, options?: GenerateOptions):
    AsyncGenerator<T extends Prompt ? number : (number | null)[]>;
  /** What was exported with `tokenizer=`. */
  tokenizer(): Promise<Tokenizer>;
  /** Seeds what programs draw from. */
  manual_seed(seed: number | bigint): void;
  /** Waits for all runs; throws what went wrong meanwhile. */
  sync(): Promise<void>;
  /** Bytes of GPU memory by role, and `total`. */
  memory_stats(): Record<string, number> & {total: number};
  /** Frees the buffers; and the device, unless the page brought it. */
  dispose(): void;
}

/** A device with what a model needs, and no more. */
export function openDevice(requires: Requires, options?: GPURequestAdapterOptions): Promise<GPUDevice>;

export type Capabilities =
  | {available: true, vendor: string, architecture: string, device: string, description: string, fallback: boolean,
    features: string[], limits: Record<string, number>}
  | {available: false, reason: string};

/** What this browser's GPU offers, or why there is none. */
export function getCapabilities(options?: GPURequestAdapterOptions): Promise<Capabilities>;
