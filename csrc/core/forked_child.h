#pragma once

namespace fastsft {

// How this process, a forked one, answers SIGTERM from now on: its parent's ends it, as by default
// (a pool that is ended). Anybody else's came to the whole group of processes: the parent answers
// it, and its children go on until it ends them. Without the parent every SIGTERM ends it.
void end_at_parents_sigterm();

}  // namespace fastsft
