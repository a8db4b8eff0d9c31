import {fail, load, ready, say} from '../load.js';
import {Model} from './torch-webgpu/index.js';

const $ = id => document.getElementById(id);
const model = await load(Model).catch(fail);
if (model) {
  const {generation, trained, parameters} = model.metadata, tokenizer = await model.tokenizer();
  let stop = null;
  $('about').textContent = `${(parameters / 1e6).toFixed(1)} million parameters. Trained on ${trained}.`;

  async function generate() {
    const prompt = tokenizer.encode($('prompt').value).slice(-generation.max_length / 2), beginning = tokenizer.decode(prompt);
    if (!prompt.length) { say('Write a beginning first.', true); return; }
    say('');
    stop = new AbortController();
    $('stop').disabled = false;
    if (document.activeElement === $('go')) $('stop').focus(); // a disabled button loses the keyboard's place
    $('go').disabled = true;
    const text = document.createTextNode('');
    $('text').replaceChildren(Object.assign(document.createElement('span'), {className: 'prompt', textContent: beginning}), text);
    const options = {temperature: Number($('temperature').value), top_p: 0.9, seed: crypto.getRandomValues(new Uint32Array(1))[0], signal: stop.signal};
    let count = 0, first = 0;
    try {
      const ids = [];
      for await (const token of model.generate(prompt, options)) {
        ids.push(token);
        text.data = tokenizer.decode(ids);
        first ||= performance.now();
        const seconds = (performance.now() - first) / 1000;
        if (++count > 1 && seconds) $('speed').textContent = `${count} tokens, ${((count - 1) / seconds).toFixed(count - 1 < 10 * seconds ? 1 : 0)} a second`;
      }
    } catch (error) {
      if (error.name !== 'AbortError') fail(error);
    } finally {
      $('go').disabled = false;
      if (document.activeElement === $('stop')) $('go').focus();
      $('stop').disabled = true;
      document.documentElement.dataset.count = String(count);
    }
  }

  $('go').addEventListener('click', generate);
  $('stop').addEventListener('click', () => stop.abort());
  $('temperature').addEventListener('input', () => { $('shown').textContent = Number($('temperature').value).toFixed(1); });
  ready();
}
