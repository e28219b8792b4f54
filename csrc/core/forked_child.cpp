#include "core/forked_child.h"

#include <unistd.h>

#include <csignal>

namespace fastsft {
namespace {

pid_t parent_at_fork = 0;

void answer_sigterm(int number, siginfo_t* info, void* /*context*/) {
  if (info->si_pid != parent_at_fork && ::getppid() == parent_at_fork) return;
  std::signal(number, SIG_DFL);
  ::kill(::getpid(), number);  // it comes when this handler has returned
}

}  // namespace

void end_at_parents_sigterm() {
  parent_at_fork = ::getppid();
  struct sigaction action {};
  action.sa_sigaction = answer_sigterm;
  action.sa_flags = SA_SIGINFO | SA_RESTART;
  ::sigaction(SIGTERM, &action, nullptr);
}

}  // namespace fastsft
