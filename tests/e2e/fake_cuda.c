/* CUDA's driver library without a GPU: test_cuda_dry.py compiles it.

   Each call adds a line "PID FUNCTION" to the file that FAKE_CUDA_CALLS names. Initialising fails, as with a GPU that
   does not respond. The declarations are those of cuda.h. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { OK = 0, NOT_INITIALIZED = 3, NOT_FOUND = 500, UNKNOWN = 999 };

static int called(const char *function, int status) {
    const char *file = getenv("FAKE_CUDA_CALLS");
    char line[256];
    int length = snprintf(line, sizeof line, "%d %s\n", (int)getpid(), function);
    int out = file ? open(file, O_WRONLY | O_APPEND | O_CREAT, 0644) : -1;
    if (out >= 0) {
        if (write(out, line, (size_t)length) != length) status = UNKNOWN;
        close(out);
    }
    return status;
}

int cuInit(unsigned flags) { (void)flags; return called("cuInit", UNKNOWN); }

/* Asked by bench itself, to see whether CUDA is initialised. */
int cuDeviceGetCount(int *count) { *count = 0; return NOT_INITIALIZED; }

int cuDriverGetVersion(int *version) { *version = 13000; return called("cuDriverGetVersion", OK); }

int cuGetErrorString(int error, const char **text) { (void)error; *text = "a made-up driver"; return OK; }

int cuGetErrorName(int error, const char **name) { (void)error; *name = "CUDA_ERROR_UNKNOWN"; return OK; }

static int other(void) { return called("another function", UNKNOWN); }

int cuGetProcAddress_v2(const char *name, void **function, int version, unsigned long long flags, int *found) {
    (void)version;
    (void)flags;
    *function = dlsym(RTLD_DEFAULT, name);
    if (*function == NULL) *(int (**)(void))function = other;
    if (found) *found = 0;
    return called("cuGetProcAddress", OK);
}

int cuGetProcAddress(const char *name, void **function, int version, unsigned long long flags) {
    return cuGetProcAddress_v2(name, function, version, flags, NULL);
}
