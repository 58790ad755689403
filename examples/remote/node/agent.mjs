// The owner's agent: Q-learning on a table, with its own copy of Gymnasium's FrozenLake.
const MAP = '["SFFF", "FHFH", "FFFH", "HFFG"]'; // unless the task has another
const ACTIONS = [0, 1, 2, 3];
const MOVES = [[0, -1], [1, 0], [0, 1], [-1, 0]]; // of each action, in rows and columns
const [EPSILON, LEARNING_RATE, IMPROVEMENT_RATE, EPISODE_STEPS] = [0.2, 0.1, 0.5, 100];

/** Return an agent for a task; throw an Error if the task is not for it. */
export function createAgent({ environment, options, discount, ...task }, seed) {
  const { desc = MAP, is_slippery = 'true', ...others } = options;
  const form = [environment, task.state_dtype, ...task.state_shape, task.actions];
  const asked = [...form, ...Object.keys(others)].join();
  if (asked !== 'FrozenLake-v1,int64,4') throw new Error(`this agent cannot play ${asked}`);
  const [map, slips] = [JSON.parse(desc), JSON.parse(is_slippery) ? [-1, 0, 1] : [0]];
  const [tiles, columns] = [[...map.join('')], map[0].length];
  const starts = [...tiles.keys()].filter((state) => tiles[state] === 'S');
  const q = tiles.map(() => ACTIONS.map(() => 0));
  let saved = { q, state: null, episodeSteps: 0, envSteps: 0, improvements: 0, seed };

  function random() { // from 0 to 1, by a linear congruential generator: JSON can hold its state
    saved.seed = (Math.imul(saved.seed, 1664525) + 1013904223) >>> 0;
    return saved.seed / 2 ** 32;
  }
  const oneOf = (choices) => choices[Math.floor(random() * choices.length)];

  function move(state, [down, right]) {
    const [row, column] = [Math.floor(state / columns) + down, (state % columns) + right];
    return map[row]?.[column] === undefined ? state : row * columns + column;
  }

  function step() {
    saved.state ??= oneOf(starts);
    const values = saved.q[saved.state];
    const greedy = ACTIONS.filter((action) => values[action] === Math.max(...values));
    const action = oneOf(random() < EPSILON ? ACTIONS : greedy);
    const next = move(saved.state, MOVES[(action + oneOf(slips) + 4) % 4]);
    const terminated = 'GH'.includes(tiles[next]);
    const future = terminated ? 0 : discount * Math.max(...saved.q[next]);
    values[action] += LEARNING_RATE * ((tiles[next] === 'G' ? 1 : 0) + future - values[action]);
    saved.envSteps += 1;
    saved.episodeSteps = terminated ? 0 : (saved.episodeSteps + 1) % EPISODE_STEPS;
    saved.state = saved.episodeSteps === 0 ? null : next; // null: an episode begins
  }

  return {
    states: ['int64', 0, tiles.length - 1], // the type of a state, the lowest and the highest one
    selfLearn: (envSteps) => { for (let i = 0; i < envSteps; i += 1) step(); },
    qValues: (states) => Float32Array.from(states.flatMap((state) => saved.q[state])),
    improve: (states, actions, targets) => {
      for (const [i, state] of states.entries()) {
        saved.q[state][actions[i]] += IMPROVEMENT_RATE * (targets[i] - saved.q[state][actions[i]]);
      }
      saved.improvements += 1;
    },
    save: () => saved,
    restore: (before) => { saved = before; },
  };
}
