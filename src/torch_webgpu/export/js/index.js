export {getCapabilities, openDevice} from './device.js';
export {WebGPUError} from './errors.js';
export {Model} from './model.js';
export {Tensor} from './tensor.js';
