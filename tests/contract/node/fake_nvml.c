/* The few NVML calls that the agent makes, for two H100s. nvidia-ml-py loads it as if it were the driver's library. */
#include <stdlib.h>
#include <string.h>

typedef struct { unsigned long long total, free, used; } memory_t;
typedef struct { unsigned int gpu, memory; } utilization_t;

int nvmlInit_v2(void) { return 0; }
int nvmlInitWithFlags(unsigned int flags) { return 0; }
int nvmlShutdown(void) { return 0; }
const char *nvmlErrorString(int code) { return "fake"; }

int nvmlDeviceGetCount_v2(unsigned int *count) { *count = 2; return 0; }

int nvmlDeviceGetHandleByIndex_v2(unsigned int index, void **device) {
    if (index > 1) return 2;
    *device = (void *)(size_t)(index + 1);
    return 0;
}

int nvmlDeviceGetName(void *device, char *name, unsigned int length) {
    strncpy(name, "NVIDIA H100 80GB HBM3", length);
    return 0;
}

int nvmlDeviceGetUUID(void *device, char *uuid, unsigned int length) {
    strncpy(uuid, (size_t)device == 1 ? "GPU-fake-0" : "GPU-fake-1", length);
    return 0;
}

int nvmlDeviceGetComputeRunningProcesses_v3(void *device, unsigned int *count, void *infos) {
    *count = 0;
    return 0;
}

int nvmlDeviceGetMemoryInfo(void *device, memory_t *memory) {
    memory->total = 80000000000ULL;
    memory->used = 20000000000ULL;
    memory->free = 60000000000ULL;
    return 0;
}

int nvmlDeviceGetUtilizationRates(void *device, utilization_t *rates) {
    rates->gpu = 42;
    rates->memory = 7;
    return 0;
}

int nvmlDeviceGetPowerUsage(void *device, unsigned int *milliwatts) { *milliwatts = 350000; return 0; }
int nvmlDeviceGetEnforcedPowerLimit(void *device, unsigned int *milliwatts) { *milliwatts = 700000; return 0; }
