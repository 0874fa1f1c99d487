-- A step that is the only open one of its graph run, plain and in its first attempt, stands in the run's hash alone: `lone` is
-- `<step> <ledger> <born> <spec>`. It has no place in the run's ledger and no hash of its own, which makes a step of a chain a quarter cheaper. A run
-- begins so; whatever is not as usual (a retry, a gate, a dead worker, a cancelled run) gives the step both first, by unfold_steps, and the
-- run goes on by its ledger for good. Returns the step, its ledger, when the log told of it and what it is asked.
local function read_lone(lone) return string.match(lone, '^(%S+) (%S+) (%d+) (.*)$') end
