// runner FILE KERNEL: runs the shared object KERNEL over the launch in the open file FILE.
#include <dlfcn.h>
#include <unistd.h>

#include <cstdlib>

#include "state.h"

using namespace pkv;

int main(int count, char** words) {
    if (count != 3) {
        return 2;
    }
    map_buffers(atoi(words[1]));
    if (launch->layout != LAYOUT) {
        return 2;
    }
    num_threads = launch->threads[0] * launch->threads[1] * launch->threads[2];
    make_stacks();
    make_threadgroup_memory();
    void* kernel = dlopen(words[2], RTLD_NOW | RTLD_LOCAL);
    void* body = kernel ? dlsym(kernel, "pkv_kernel") : nullptr;
    if (!body) {
        report("kernel that does not link", "%s", dlerror());
    }
    find_image(body);
    watch();
    run_all_groups(reinterpret_cast<void (*)()>(body));
    check_all_written();
    launch->finished = 1;
    _exit(0);
}
