// Shows v1/openapi.json, and makes calls to the node that served this page. Asks nobody else.
'use strict';

function element(name, attributes, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes || {})) {
    if (key.startsWith('on')) made.addEventListener(key.slice(2), value); else made.setAttribute(key, value);
  }
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

function resolve(schemas, schema) {
  return schema && schema.$ref ? schemas[schema.$ref.split('/').pop()] || {} : schema || {};
}

// An example of a body, as far as its schema tells.
function example(schemas, schema, depth) {
  const found = resolve(schemas, schema);
  if (depth > 5) return null;
  if (found.properties) {
    return Object.fromEntries(Object.entries(found.properties).map(([name, of]) => [name, example(schemas, of, depth + 1)]));
  }
  if (found.enum) return found.enum[0];
  const type = Array.isArray(found.type) ? found.type[0] : found.type;
  return { string: '', integer: 0, number: 0, boolean: false, array: [], object: {} }[type] ?? null;
}

async function call(method, path, inputs, body, output) {
  let target = path.slice(1);
  const query = new URLSearchParams();
  const headers = {};
  for (const { parameter, input } of inputs) {
    const value = input.value;
    if (parameter.in === 'path') target = target.replace(`{${parameter.name}}`, encodeURIComponent(value));
    else if (value !== '' && parameter.in === 'query') query.set(parameter.name, value);
    else if (value !== '' && parameter.in === 'header') headers[parameter.name] = value;
  }
  const token = document.getElementById('token').value;
  if (token !== '') headers.Authorization = `Bearer ${token}`;
  if (body) headers['Content-Type'] = 'application/json';
  const text = query.toString();
  output.textContent = '...';
  try {
    const answer = await fetch(text === '' ? target : `${target}?${text}`,
      { method: method.toUpperCase(), headers, body: body ? body.value : undefined });
    const raw = await answer.text();
    let shown = raw;
    try { shown = JSON.stringify(JSON.parse(raw), null, 2); } catch { /* not JSON */ }
    output.textContent = `${answer.status} ${answer.statusText}\n${shown}`;
  } catch (error) {
    output.textContent = `no answer: ${error}`;
  }
}

function show(schemas, path, method, operation) {
  const inputs = (operation.parameters || []).map((parameter) => {
    const schema = resolve(schemas, parameter.schema);
    return { parameter, input: element('input', { placeholder: [].concat(schema.type || '').join(' ') }) };
  });
  const content = operation.requestBody && operation.requestBody.content['application/json'];
  const body = content ? element('textarea', { rows: 8 }) : null;
  if (body) body.value = JSON.stringify(example(schemas, content.schema, 0), null, 2);
  const output = element('pre', {});
  const send = () => {
    if (method === 'get' || confirm(`${method.toUpperCase()} ${path}: this may change the cluster.`)) {
      call(method, path, inputs, body, output);
    }
  };
  return element('details', { 'data-text': `${method} ${path} ${operation.summary || ''}`.toLowerCase() },
    element('summary', {}, element('span', { class: `method ${method}` }, method.toUpperCase()),
      element('code', {}, path), ` ${operation.summary || ''}`),
    operation.description ? element('p', {}, operation.description) : null,
    element('table', {}, ...inputs.map(({ parameter, input }) => element('tr', {},
      element('td', parameter.required ? { class: 'required' } : {}, parameter.name), element('td', {}, input),
      element('td', {}, parameter.description || '')))),
    body, element('button', { onclick: send }, 'Call'), output);
}

async function start() {
  const calls = document.getElementById('calls');
  const api = await (await fetch('v1/openapi.json')).json();
  document.getElementById('about').textContent = `${api.info.description} Version ${api.info.version}.`;
  const byTag = new Map();
  for (const [path, methods] of Object.entries(api.paths)) {
    for (const [method, operation] of Object.entries(methods)) {
      const tag = (operation.tags || ['other'])[0];
      byTag.set(tag, [...(byTag.get(tag) || []), show(api.components.schemas, path, method, operation)]);
    }
  }
  calls.replaceChildren(...[...byTag].sort().map(([tag, shown]) =>
    element('section', {}, element('h2', {}, tag), ...shown)));
  document.getElementById('find').addEventListener('input', (event) => {
    for (const found of calls.querySelectorAll('details')) {
      found.hidden = !found.dataset.text.includes(event.target.value.toLowerCase());
    }
  });
}

start().catch((error) => { document.getElementById('calls').textContent = `cannot read the description: ${error}`; });
