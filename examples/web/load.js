// What the pages share: loading a model with progress, and saying in a sentence what is wrong.
const $ = id => document.getElementById(id);

const ADVICE = {
  insecure: 'Open it from https:// or localhost.', network: 'Reload the page to try again.',
  lost: 'Reload the page.', 'out-of-memory': 'Close other tabs that use the GPU.',
};

export function say(text, bad = false) {
  $('status').textContent = text;
  $('status').className = bad ? 'bad' : '';
}

export function fail(error) {
  document.documentElement.dataset.state = 'failed';
  $('progress').hidden = true;
  say(`${error.message} ${ADVICE[error.kind] ?? ''}`.trim(), true);
}

/** Loads the model beside the page, and shows the part of the page that uses it. */
export async function load(Model) {
  const parts = {};
  const progress_callback = ({status, file = 'kernels', loaded, total}) => {
    if (status === 'ready') return;
    parts[file] = loaded / total;
    const shares = Object.values(parts);
    $('progress').value = 100 * shares.reduce((a, b) => a + b, 0) / shares.length;
    say(status === 'compile' ? `Compiling kernels for your GPU: ${loaded} of ${total} …` : 'Loading …');
  };
  const model = await Model.load('./', {progress_callback});
  $('progress').hidden = true;
  $('work').hidden = false;
  say('');
  return model;
}

export const ready = () => { document.documentElement.dataset.state = 'ready'; };
