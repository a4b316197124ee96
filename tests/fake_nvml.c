/* NVIDIA's management library (NVML) without a GPU: tests/fake_nvml.py compiles it.

   FAKE_NVML_GPUS describes the GPUs in PCI order, then their slices, separated by semicolons:

       uuid=GPU-a mib=81920 used=0 reserved=600 mig=0 busy=35 others=1 mps=1 reasons=68 clock=990 temperature=91
       limit_mw=700000 energy_mj=5 capability=7 pci=00000000:41:00.0; uuid=MIG-a1 mib=10240 of=0

   Without the variable, there is no driver. FAKE_NVML_FILE names a file that has the description instead, for processes
   that run already. A figure that an entry does not give is not supported; `lost=1` is a GPU that has fallen off the bus.
   `used` is without what the driver reserves, as version 2 counts it; version 1 counts `reserved`, too. `others` are
   processes with a context that this one may see: none of another PID namespace, whose memory is in `used` all the same.
   `mps=1` is the server of MPS among them. As with the real library, what one process has opened is of no use to a process that it forks: each answer is then NVML_ERROR_UNKNOWN.
   The declarations are those of nvml.h. */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { OK = 0, UNINITIALIZED = 1, NOT_SUPPORTED = 3, NOT_FOUND = 6, TOO_SMALL = 7, NO_DRIVER = 9, LOST = 15, UNKNOWN = 999 };

static int opened = 0;
static pid_t owner = 0;

static int state(void) {
    if (opened == 0) return UNINITIALIZED;
    return owner == getpid() ? OK : UNKNOWN;
}

static const char *description(void) {
    static char text[4096];
    const char *name = getenv("FAKE_NVML_FILE");
    if (name == NULL) return getenv("FAKE_NVML_GPUS");
    FILE *file = fopen(name, "r");
    if (file == NULL) return NULL;
    text[fread(text, 1, sizeof text - 1, file)] = 0;
    fclose(file);
    return text;
}

static int entry(unsigned index, char text[512]) {
    const char *from = description();
    if (from == NULL || *from == 0) return 0;
    for (; index > 0; index--) {
        from = strchr(from, ';');
        if (from == NULL) return 0;
        from++;
    }
    snprintf(text, 512, " %.*s", (int)strcspn(from, ";"), from);
    return 1;
}

static int text_of(void *gpu, const char *name, char *out, unsigned size) {
    char text[512], key[32];
    if (!entry((unsigned)(size_t)gpu - 1, text)) return NOT_FOUND;
    snprintf(key, sizeof key, " %s=", name);
    const char *value = strstr(text, key);
    if (value == NULL) return NOT_SUPPORTED;
    value += strlen(key);
    snprintf(out, size, "%.*s", (int)strcspn(value, " "), value);
    return OK;
}

static int number_of(void *gpu, const char *name, unsigned long long *out) {
    char value[32];
    int status = state();
    if (status == OK && text_of(gpu, "lost", value, sizeof value) == OK) return LOST;
    if (status == OK) status = text_of(gpu, name, value, sizeof value);
    if (status == OK) *out = strtoull(value, NULL, 10);
    return status;
}

static int small_number_of(void *gpu, const char *name, unsigned *out) {
    unsigned long long value = 0;
    int status = number_of(gpu, name, &value);
    if (status == OK) *out = (unsigned)value;
    return status;
}

int nvmlInitWithFlags(unsigned flags) {
    (void)flags;
    if (description() == NULL) return NO_DRIVER;
    if (opened++ == 0) owner = getpid();
    return OK;
}

int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }

int nvmlInit(void) { return nvmlInitWithFlags(0); }

int nvmlShutdown(void) {
    if (opened == 0) return UNINITIALIZED;
    opened--;
    return OK;
}

const char *nvmlErrorString(int status) {
    switch (status) {
    case UNINITIALIZED: return "Uninitialized";
    case NOT_SUPPORTED: return "Not Supported";
    case NOT_FOUND: return "Not Found";
    case LOST: return "GPU is lost";
    }
    return "Unknown Error";
}

int nvmlSystemGetDriverVersion(char *version, unsigned size) {
    const char *value = getenv("FAKE_NVML_DRIVER");
    snprintf(version, size, "%s", value ? value : "580.65.06");
    return state();
}

int nvmlSystemGetCudaDriverVersion(int *version) {
    const char *value = getenv("FAKE_NVML_CUDA");
    *version = value ? atoi(value) : 13000;
    return state();
}

int nvmlDeviceGetCount_v2(unsigned *count) {
    char text[512];
    for (*count = 0; entry(*count, text) && strstr(text, " uuid=GPU-"); ++*count) {}
    return state();
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **gpu) {
    char value[8];
    *gpu = (void *)(size_t)(index + 1);
    if (state() != OK) return state();
    return text_of(*gpu, "lost", value, sizeof value) == OK ? LOST : OK;
}

int nvmlDeviceGetHandleByUUID(const char *uuid, void **gpu) {
    char text[512], own[96];
    for (size_t index = 0; entry((unsigned)index, text); index++) {
        *gpu = (void *)(index + 1);
        if (text_of(*gpu, "uuid", own, sizeof own) == OK && strcmp(own, uuid) == 0) return state();
    }
    return NOT_FOUND;
}

int nvmlDeviceGetDeviceHandleFromMigDeviceHandle(void *slice, void **gpu) {
    unsigned index = 0;
    int status = small_number_of(slice, "of", &index);
    *gpu = (void *)(size_t)(index + 1);
    return status;
}

int nvmlDeviceGetName(void *gpu, char *name, unsigned size) {
    (void)gpu;
    snprintf(name, size, "Example GPU");
    return state();
}

int nvmlDeviceGetUUID(void *gpu, char *uuid, unsigned size) {
    return state() == OK ? text_of(gpu, "uuid", uuid, size) : state();
}

static int mib_of(void *gpu, const char *name, unsigned long long *bytes) {
    int status = number_of(gpu, name, bytes);
    if (status == OK) *bytes <<= 20;
    return status;
}

int nvmlDeviceGetMemoryInfo(void *gpu, unsigned long long memory[3]) {
    unsigned long long used = 0, reserved = 0;
    int status = mib_of(gpu, "mib", &memory[0]);
    mib_of(gpu, "used", &used);
    mib_of(gpu, "reserved", &reserved);
    memory[1] = memory[0] - used - reserved;
    memory[2] = used + reserved;
    return status;
}

struct memory_v2 {
    unsigned version;
    unsigned long long total, reserved, free, used;
};

int nvmlDeviceGetMemoryInfo_v2(void *gpu, struct memory_v2 *memory) {
    mib_of(gpu, "reserved", &memory->reserved);
    return mib_of(gpu, "used", &memory->used);
}

int nvmlDeviceGetMigMode(void *gpu, unsigned *now, unsigned *later) {
    int status = small_number_of(gpu, "mig", now);
    *later = *now;
    return status;
}

int nvmlDeviceGetUtilizationRates(void *gpu, unsigned shares[2]) {
    shares[1] = 0;
    return small_number_of(gpu, "busy", &shares[0]);
}

struct process {
    unsigned pid;
    unsigned long long bytes;
    unsigned instance, compute;
};

int nvmlDeviceGetComputeRunningProcesses_v3(void *gpu, unsigned *count, struct process *found) {
    unsigned others = 0, room = *count;
    int status = small_number_of(gpu, "others", &others);
    if (status != OK) return status;
    *count = others;
    if (others > room) return TOO_SMALL;
    for (unsigned index = 0; index < others; index++) found[index] = (struct process){.pid = index + 1};
    return OK;
}

int nvmlSystemGetProcessName(unsigned pid, char *name, unsigned size) {
    char value[8];
    int mps = pid == 1 && text_of((void *)1, "mps", value, sizeof value) == OK;
    snprintf(name, size, "%s", mps ? "/usr/bin/nvidia-cuda-mps-server" : "python");
    return state();
}

int nvmlDeviceGetEnforcedPowerLimit(void *gpu, unsigned *milliwatts) { return small_number_of(gpu, "limit_mw", milliwatts); }

int nvmlDeviceGetCudaComputeCapability(void *gpu, int *major, int *minor) {
    *minor = 0;
    return small_number_of(gpu, "capability", (unsigned *)major);
}

int nvmlDeviceGetTotalEnergyConsumption(void *gpu, unsigned long long *millijoules) {
    return number_of(gpu, "energy_mj", millijoules);
}

struct pci {
    char legacy[16];
    unsigned domain, bus, device, id, subsystem;
    char bus_id[32];
};

int nvmlDeviceGetPciInfo_v3(void *gpu, struct pci *pci) {
    memset(pci, 0, sizeof *pci);
    return state() == OK ? text_of(gpu, "pci", pci->bus_id, sizeof pci->bus_id) : state();
}

int nvmlDeviceGetCurrentClocksThrottleReasons(void *gpu, unsigned long long *reasons) {
    return number_of(gpu, "reasons", reasons);
}

int nvmlDeviceGetClockInfo(void *gpu, int clock, unsigned *mhz) {
    (void)clock;
    return small_number_of(gpu, "clock", mhz);
}

int nvmlDeviceGetMaxClockInfo(void *gpu, int clock, unsigned *mhz) {
    (void)gpu, (void)clock;
    *mhz = 1980;
    return state();
}

int nvmlDeviceGetTemperature(void *gpu, int sensor, unsigned *celsius) {
    (void)sensor;
    return small_number_of(gpu, "temperature", celsius);
}
