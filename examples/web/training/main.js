import {fail, load, ready} from '../load.js';
import {Model} from './torch-webgpu/index.js';

const $ = id => document.getElementById(id);
const SHOWN = 36, AHEAD = 4; // steps that are encoded before the loss of the last one is read
const colour = name => getComputedStyle(document.documentElement).getPropertyValue(name);

/** The losses as a curve: the axes are labelled at powers of ten, and at round numbers of steps. */
function plot(losses) {
  const canvas = $('plot'), ratio = devicePixelRatio, [width, height] = [canvas.clientWidth, canvas.clientHeight];
  Object.assign(canvas, {width: width * ratio, height: height * ratio});
  const pen = canvas.getContext('2d');
  pen.scale(ratio, ratio);
  const [least, most] = losses.reduce(([a, b], loss) => [loss < a ? loss : a, loss > b ? loss : b], [1, 4]);
  const high = Math.log10(Math.min(most, 1e5)), low = Math.min(-2, Math.floor(Math.log10(Math.max(1e-5, least))));
  const last = Math.max(losses.length - 1, 50), x = k => 44 + (width - 60) * k / last;
  const y = value => 12 + (height - 40) * (high - value) / (high - low);
  Object.assign(pen, {font: '12px system-ui, sans-serif', textBaseline: 'middle', textAlign: 'right', lineWidth: 1});
  for (let power = Math.floor(high); power >= low; power--) {
    pen.fillStyle = colour('--quiet');
    pen.fillText(String(10 ** power), 38, y(power));
    pen.strokeStyle = colour('--line');
    pen.beginPath();
    pen.moveTo(44, y(power));
    pen.lineTo(width - 12, y(power));
    pen.stroke();
  }
  const power = 10 ** Math.floor(Math.log10(last / 4)), apart = [5, 2, 1].find(n => n * power <= last / 4) * power;
  pen.textAlign = 'center';
  for (let k = 0; k <= last; k += apart) pen.fillText(String(k), x(k), height - 12);
  Object.assign(pen, {strokeStyle: colour('--accent'), lineWidth: 1.75, lineJoin: 'round'});
  pen.beginPath();
  const every = Math.ceil(losses.length / width); // of many losses, one a pixel
  for (let k = 0; k < losses.length; k += every) pen.lineTo(x(k), y(Math.min(high, Math.max(low, Math.log10(Math.max(losses[k], 1e-9))))));
  pen.stroke();
}

/** The numbers from 0 to n in a random order. */
function shuffled(n) {
  const order = Uint32Array.from({length: n}, (_, k) => k);
  for (let k = n - 1; k > 0; k--) {
    const other = Math.floor(Math.random() * (k + 1));
    [order[k], order[other]] = [order[other], order[k]];
  }
  return order;
}

const model = await load(Model).catch(fail);
if (model) {
  const {count, batch} = model.metadata, {images, labels} = await model.run('samples', {});
  let losses = [], order = shuffled(count), at = 0, training = false, loop = Promise.resolve(), rate = 0.01;
  const shade = 45; // which the style sheet inverts where it is dark

  const cells = Array.from({length: SHOWN}, (_, k) => {
    const canvas = Object.assign(document.createElement('canvas'), {width: 8, height: 8}), pen = canvas.getContext('2d');
    const pixels = pen.createImageData(8, 8), cell = document.createElement('div'), read = document.createElement('span');
    images.data.subarray(64 * k, 64 * k + 64).forEach((value, p) => pixels.data.set([shade, shade, shade, 255 * value], 4 * p));
    pen.putImageData(pixels, 0, 0);
    read.textContent = '–';
    cell.append(canvas, read);
    $('digits').append(cell);
    return {cell, read};
  });

  function next() {
    if (at + batch > count) { order = shuffled(count); at = 0; }
    return order.subarray(at, at += batch);
  }

  async function evaluate() {
    const {accuracy, read} = await model.run('evaluate', {});
    $('accuracy').textContent = `${(100 * accuracy.item()).toFixed(1)} %`;
    cells.forEach(({cell, read: shown}, k) => {
      shown.textContent = String(read.data[k]);
      cell.className = read.data[k] === labels.data[k] ? '' : 'wrong';
    });
  }

  async function train() {
    training = true;
    $('go').textContent = 'Pause';
    let last = performance.now(), steps = 0;
    try {
      while (training) {
        const results = await Promise.all(Array.from({length: AHEAD}, () => model.run('train', {indices: next(), learning_rate: rate})));
        losses.push(...results.map(({loss}) => loss.item()));
        steps += AHEAD;
        $('step').textContent = String(losses.length);
        $('loss').textContent = losses.at(-1).toPrecision(3);
        plot(losses);
        const now = performance.now();
        if (steps >= 20 || now - last > 2000) {
          $('speed').textContent = (1000 * steps / (now - last)).toFixed(steps / (now - last) > 0.01 ? 0 : 1);
          await evaluate();
          [last, steps] = [performance.now(), 0];
        }
        document.documentElement.dataset.steps = String(losses.length);
        await new Promise(requestAnimationFrame);
      }
      await evaluate();
    } catch (error) {
      fail(error);
    } finally {
      training = false;
      $('go').textContent = 'Train';
    }
  }

  $('go').addEventListener('click', async () => {
    if (training) {
      training = false;
      $('go').textContent = 'Train'; // the steps that are on their way go on
    } else {
      await loop;
      loop = train();
    }
  });
  $('reset').addEventListener('click', async () => {
    training = false;
    await loop; // the steps that are on their way
    losses = [];
    await model.state.reset();
    $('step').textContent = '0';
    $('loss').textContent = '–';
    $('speed').textContent = '–';
    plot(losses);
    await evaluate();
    document.documentElement.dataset.steps = '0';
  });
  $('rate').addEventListener('input', () => {
    rate = 10 ** Number($('rate').value);
    $('shown').textContent = rate.toPrecision(2).replace(/\.?0+$/, '');
  });
  addEventListener('resize', () => plot(losses));
  matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => plot(losses));
  plot(losses);
  await evaluate().catch(fail);
  ready();
}
