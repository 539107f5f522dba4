// What a program does with the official client for Node; it writes what it was answered as JSON.
//
//   node tasks_program.mjs grpc|rest PORT URL

import {v2, v2beta3} from '@google-cloud/tasks';
import {PassThroughClient} from 'google-auth-library';
import {grpc} from 'google-gax';

const PARENT = 'projects/demo-local/locations/us-central1';
const QUEUE = `${PARENT}/queues/node`;

const [transport, port, url] = process.argv.slice(2);

function optionsOf(transport) {
  const authClient = new PassThroughClient();
  const options = {apiEndpoint: '127.0.0.1', port: Number(port), authClient};
  if (transport === 'grpc') {
    return {...options, sslCreds: grpc.credentials.createInsecure()};
  }
  return {...options, fallback: 'rest', protocol: 'http'};
}

async function refusalOf(call) {
  try {
    await call;
  } catch (error) {
    return [error.code, error.message.replace(/^\d+ [A-Z_]+: /, '')];
  }
  return null;
}

async function useQueues(client) {
  const rateLimits = {maxDispatchesPerSecond: 7};
  const [created] = await client.createQueue({parent: PARENT, queue: {name: QUEUE, rateLimits}});
  const [queues] = await client.listQueues({parent: PARENT});
  const [updated] = await client.updateQueue({
    queue: {name: QUEUE, retryConfig: {maxAttempts: 3, minBackoff: {nanos: 500000000}}},
    updateMask: {paths: ['retry_config.max_attempts', 'retry_config.min_backoff']},
  });
  const [paused] = await client.pauseQueue({name: QUEUE});
  const bindings = [{role: 'roles/viewer', members: ['user:a@b.c']}];
  await client.setIamPolicy({resource: QUEUE, policy: {bindings}});
  const [policy] = await client.getIamPolicy({resource: QUEUE});
  return {
    rate: created.rateLimits.maxDispatchesPerSecond,
    listed: queues.map(queue => queue.name).includes(QUEUE),
    attempts: updated.retryConfig.maxAttempts,
    backoff: updated.retryConfig.minBackoff.nanos,
    state: paused.state,
    members: policy.bindings[0].members,
    unknown: await refusalOf(client.getQueue({name: `${QUEUE}-unknown`})),
  };
}

function taskOf(path, fields = {}) {
  const body = Buffer.from('{"n": 1}');
  const headers = {'Content-Type': 'application/json'};
  return {httpRequest: {httpMethod: 'PUT', url: `${url}${path}`, body, headers}, ...fields};
}

async function useTasks(client) {
  const name = client.taskPath('demo-local', 'us-central1', 'node', 'mine');
  const task = taskOf('/named', {name, dispatchDeadline: {seconds: 30}});
  await client.createTask({parent: QUEUE, task, responseView: 'FULL'});
  const [full] = await client.getTask({name, responseView: 'FULL'});
  const taken = await refusalOf(client.createTask({parent: QUEUE, task}));
  const scheduleTime = {seconds: Math.floor(Date.now() / 1000) + 3600};
  for (const path of ['/late', '/late', '/run']) {
    await client.createTask({parent: QUEUE, task: taskOf(path, {scheduleTime})});
  }
  const tasks = [];
  for await (const task of client.listTasksAsync({parent: QUEUE, pageSize: 2})) {
    tasks.push(task);
  }
  const [late, other, run] = tasks.filter(task => task.name !== name);
  await client.deleteTask({name: late.name});
  await client.runTask({name: run.name});
  return {
    body: full.httpRequest.body.toString(),
    method: full.httpRequest.httpMethod,
    deadline: Number(full.dispatchDeadline.seconds),
    listed: tasks.length,
    scheduled: Number(other.scheduleTime.seconds) === scheduleTime.seconds,
    taken,
    deleted: await refusalOf(client.getTask({name: late.name})),
    refused: await refusalOf(client.createTask({parent: QUEUE, task: {httpRequest: {url: 'ftp://a'}}})),
  };
}

async function useBatches(client) {
  const requests = ['/batch', '/batch'].map(path => ({parent: QUEUE, task: taskOf(path)}));
  const [operation] = await client.batchCreateTasks({parent: QUEUE, requests});
  const [created] = await operation.promise();
  return {created: created.tasks.length};
}

const client = new v2.CloudTasksClient(optionsOf(transport));
const beta = new v2beta3.CloudTasksClient(optionsOf(transport));
const answers = {queues: await useQueues(client), tasks: await useTasks(client)};
answers.batches = await useBatches(beta);
await client.resumeQueue({name: QUEUE});
process.stdout.write(JSON.stringify(answers));
await Promise.all([client.close(), beta.close()]);
