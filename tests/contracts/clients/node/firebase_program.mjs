// What a program does with the task queue of Firebase Admin; it writes what came of it as JSON.
//
//   CLOUD_TASKS_EMULATOR_HOST=HOST:PORT node firebase_program.mjs URL

import {initializeApp} from 'firebase-admin/app';
import {getFunctions} from 'firebase-admin/functions';

const [uri] = process.argv.slice(2);

async function codeOf(call) {
  try {
    await call;
  } catch (error) {
    return error.code;
  }
  return 'none';
}

initializeApp({projectId: 'demo-local'});
const resize = getFunctions().taskQueue('resize');
const elsewhere = getFunctions().taskQueue('locations/europe-west1/functions/resize');
const answers = {};
await resize.enqueue({image: 1});
await resize.enqueue({image: 2}, {uri, id: 'named', headers: {'X-Mine': '1'}});
answers.taken = await codeOf(resize.enqueue({image: 2}, {id: 'named'}));
await elsewhere.enqueue({image: 3}, {uri, dispatchDeadlineSeconds: 60});
const inAnHour = {scheduleDelaySeconds: 3600, id: 'late'};
await resize.enqueue({image: 4}, inAnHour);
await resize.delete('late');
answers.deletedTwice = await codeOf(resize.delete('late'));
answers.deletedName = await codeOf(resize.enqueue({image: 4}, inAnHour));
answers.unknownQueue = await codeOf(getFunctions().taskQueue('unknown').enqueue({}));
process.stdout.write(JSON.stringify(answers));
