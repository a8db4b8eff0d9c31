// WebGPU's flags: GPUBufferUsage, GPUMapMode, GPUShaderStage.
export const MAP_READ = 1, COPY_SRC = 4, COPY_DST = 8, UNIFORM = 64, STORAGE = 128, READ = 1, COMPUTE = 4;
