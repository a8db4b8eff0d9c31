import {Model} from '/runtime/index.js';

onmessage = async ({data: url}) => {
  const model = await Model.load(new URL(url, location.href));
  const {output} = await model.run({x: new Float32Array(16), scale: 1});
  postMessage(output.shape);
};
