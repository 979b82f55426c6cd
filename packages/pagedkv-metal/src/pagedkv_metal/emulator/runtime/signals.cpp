// What ends a kernel from outside: the time limit, and what only the processor notices.
#include <signal.h>
#include <sys/time.h>
#include <ucontext.h>

#include "state.h"

namespace pkv {

static const void* interrupted(const void* context) {
    const mcontext_t& machine = static_cast<const ucontext_t*>(context)->uc_mcontext;
#if defined(__x86_64__)
    return reinterpret_cast<const void*>(machine.gregs[REG_RIP]);
#else
    return reinterpret_cast<const void*>(machine.pc);
#endif
}

static void set_timer(long seconds, long microseconds) {
    // The time of this process, not the wall's: a busy machine ends no kernel.
    const itimerval timer = {{0, 0}, {seconds, microseconds}};
    setitimer(ITIMER_VIRTUAL, &timer, nullptr);
}

// A moment may fall into the runner's own code; a few later ones are tried for a line.
static void out_of_time(int, siginfo_t*, void* context) {
    static int tries = 100;
    const void* code = interrupted(context);
    if (!in_image(code) && tries-- > 0) {
        set_timer(0, 200);
        return;
    }
    report("endless kernel", "%s still ran after %llu seconds, at %s; its last access was at %s",
           who(current), static_cast<unsigned long long>(launch->cpu_seconds), where(code),
           where(last_access));
}

static void crashed(int number, siginfo_t* info, void* context) {
    const char* thread = current ? who(current) : "the runner";
    const char* at = where(interrupted(context));
    if (number == SIGSEGV && in_stack_guard(info->si_addr)) {
        report("too much private memory", "%s needs more than 256 KiB of stack at %s", thread, at);
    }
    report("crash", "%s was stopped by signal %d at %s", thread, number, at);
}

static void handle(int number, void (*handler)(int, siginfo_t*, void*)) {
    struct sigaction action = {};
    action.sa_sigaction = handler;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    sigaction(number, &action, nullptr);
}

void watch() {
    static char stack[64 * 1024];
    const stack_t alternative = {stack, 0, sizeof stack};
    sigaltstack(&alternative, nullptr);
    const int crashes[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP};
    for (int number : crashes) {
        handle(number, crashed);
    }
    handle(SIGVTALRM, out_of_time);
    set_timer(static_cast<long>(launch->cpu_seconds), 0);
}

}  // namespace pkv
