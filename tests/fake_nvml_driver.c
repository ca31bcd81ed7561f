/* NVML for machines without a GPU: what nvidia-ml-py loads as if it were the driver's library.
 *
 * FAKE_NVML names a file of `key=value` lines that is read anew at every call, so that a test can change it at any time:
 *   count=8, temperature=41, gpu3.temperature=95      a reading, of all devices or of one
 *   error.nvmlDeviceGetTemperature=3                  what a call returns, on all devices
 *   gpu3.error=15                                     what every call on one device returns
 *   lost_after=40                                     from the 40th call on a device on, device 0 is lost (15)
 *   hang=nvmlDeviceGetTemperature                     this call never returns
 *   field82=61, nvlink3=0                             a field of nvmlDeviceGetFieldValues (else not told), a link
 */
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SUCCESS = 0, INVALID_ARGUMENT = 2, INSUFFICIENT_SIZE = 7, GPU_IS_LOST = 15 };

static int calls;

static int find(const char *key, char *out, size_t size) {
    const char *path = getenv("FAKE_NVML");
    FILE *file = path ? fopen(path, "r") : NULL;
    char line[512];
    int found = 0;
    size_t length = strlen(key);
    if (!file) return 0;
    while (fgets(line, sizeof line, file)) {
        if (strncmp(line, key, length) == 0 && line[length] == '=') {
            line[strcspn(line, "\n")] = 0;
            snprintf(out, size, "%s", line + length + 1);
            found = 1;
        }
    }
    fclose(file);
    return found;
}

static int device_text(void *device, const char *key, char *out, size_t size) {
    char own[256];
    snprintf(own, sizeof own, "gpu%zu.%s", (size_t)device - 1, key);
    return find(own, out, size) || find(key, out, size);
}

static long long number(void *device, const char *key, long long otherwise) {
    char text[256];
    int found = device ? device_text(device, key, text, sizeof text) : find(key, text, sizeof text);
    return found ? strtoll(text, NULL, 0) : otherwise;
}

static int enter(const char *call, void *device) {
    char key[256], text[256];
    if (find("hang", text, sizeof text) && strcmp(text, call) == 0)
        for (;;) pause();
    snprintf(key, sizeof key, "error.%s", call);
    if (find(key, text, sizeof text)) return atoi(text);
    if (device) {
        snprintf(key, sizeof key, "gpu%zu.error", (size_t)device - 1);
        if (find(key, text, sizeof text)) return atoi(text);
        calls++;
        if (find("lost_after", text, sizeof text) && calls >= atoi(text) && (size_t)device == 1) return GPU_IS_LOST;
    }
    return SUCCESS;
}

#define ENTER(device) { int code = enter(__func__, device); if (code) return code; }

int nvmlInit_v2(void) { ENTER(NULL); return 0; }
int nvmlInitWithFlags(unsigned int flags) { int code = enter("nvmlInit_v2", NULL); return code; }
int nvmlShutdown(void) { return 0; }

const char *nvmlErrorString(int code) {
    switch (code) {
    case 6: return "Not Found";
    case 3: return "Not Supported";
    case 9: return "Driver Not Loaded";
    case 13: return "Function Not Found";
    case 15: return "GPU is lost";
    case 18: return "RM has detected an NVML/RM version mismatch.";
    default: return "Unknown Error";
    }
}

static int copy(const char *key, void *device, const char *otherwise, char *out, unsigned int length) {
    char text[256];
    int found = device ? device_text(device, key, text, sizeof text) : find(key, text, sizeof text);
    snprintf(out, length, "%s", found ? text : otherwise);
    return 0;
}

int nvmlSystemGetDriverVersion(char *out, unsigned int length) { ENTER(NULL); return copy("driver", NULL, "570.124.06", out, length); }
int nvmlSystemGetNVMLVersion(char *out, unsigned int length) { ENTER(NULL); return copy("nvml", NULL, "12.570.124.06", out, length); }
int nvmlSystemGetCudaDriverVersion_v2(int *version) { ENTER(NULL); *version = number(NULL, "cuda", 12080); return 0; }
int nvmlSystemGetCudaDriverVersion(int *version) { return nvmlSystemGetCudaDriverVersion_v2(version); }
int nvmlDeviceGetCount_v2(unsigned int *count) { ENTER(NULL); *count = number(NULL, "count", 8); return 0; }

int nvmlDeviceGetHandleByIndex_v2(unsigned int index, void **device) {
    if (index >= number(NULL, "count", 8)) return INVALID_ARGUMENT;
    ENTER((void *)(size_t)(index + 1));
    *device = (void *)(size_t)(index + 1);
    return 0;
}

int nvmlDeviceGetHandleByUUID(const char *uuid, void **device) {
    int index;
    if (sscanf(uuid, "GPU-fake-%d", &index) != 1) return 6;
    return nvmlDeviceGetHandleByIndex_v2((unsigned int)index, device);
}
int nvmlDeviceGetIndex(void *device, unsigned int *index) { ENTER(device); *index = (unsigned int)(size_t)device - 1; return 0; }

int nvmlDeviceGetName(void *device, char *out, unsigned int length) { ENTER(device); return copy("name", device, "NVIDIA H100 80GB HBM3", out, length); }

int nvmlDeviceGetUUID(void *device, char *out, unsigned int length) {
    char otherwise[64];
    ENTER(device);
    snprintf(otherwise, sizeof otherwise, "GPU-fake-%zu", (size_t)device - 1);
    return copy("uuid", device, otherwise, out, length);
}

int nvmlDeviceGetSerial(void *device, char *out, unsigned int length) {
    char otherwise[64];
    ENTER(device);
    snprintf(otherwise, sizeof otherwise, "165%zu", (size_t)device);
    return copy("serial", device, otherwise, out, length);
}

int nvmlDeviceGetVbiosVersion(void *device, char *out, unsigned int length) { ENTER(device); return copy("vbios", device, "96.00.74.00.01", out, length); }

typedef struct {
    char legacy[16];
    unsigned int domain, bus, device, id, subsystem;
    char bus_id[32];
} pci_t;

int nvmlDeviceGetPciInfo_v3(void *device, pci_t *pci) {
    ENTER(device);
    memset(pci, 0, sizeof *pci);
    pci->bus = 0x10 + (unsigned int)(size_t)device;
    snprintf(pci->bus_id, sizeof pci->bus_id, "00000000:%02X:00.0", pci->bus);
    return 0;
}

#define READING(call, type, key, otherwise) \
    int call(void *device, type *out) { ENTER(device); *out = (type)number(device, key, otherwise); return 0; }

READING(nvmlDeviceGetPersistenceMode, unsigned int, "persistence", 1)
READING(nvmlDeviceGetCurrentClocksEventReasons, unsigned long long, "clock_reasons", 1)
READING(nvmlDeviceGetCurrentClocksThrottleReasons, unsigned long long, "clock_reasons", 1)
READING(nvmlDeviceGetPowerUsage, unsigned int, "power_mw", 72000)
READING(nvmlDeviceGetEnforcedPowerLimit, unsigned int, "power_limit_mw", 700000)
READING(nvmlDeviceGetPowerManagementDefaultLimit, unsigned int, "power_default_mw", 700000)
READING(nvmlDeviceGetCurrPcieLinkGeneration, unsigned int, "pcie_generation", 5)
READING(nvmlDeviceGetMaxPcieLinkGeneration, unsigned int, "pcie_generation_max", 5)
READING(nvmlDeviceGetCurrPcieLinkWidth, unsigned int, "pcie_width", 16)
READING(nvmlDeviceGetPcieReplayCounter, unsigned int, "replays", 0)
READING(nvmlDeviceGetMaxPcieLinkWidth, unsigned int, "pcie_width_max", 16)

typedef struct { unsigned int gpu, memory; } rates_t;
int nvmlDeviceGetUtilizationRates(void *device, rates_t *out) {
    ENTER(device);
    out->gpu = number(device, "utilization", 0);
    out->memory = number(device, "memory_utilization", 0);
    return 0;
}
int nvmlDeviceGetClockInfo(void *device, int clock, unsigned int *out) {
    ENTER(device);
    *out = clock == 2 ? number(device, "memory_clock", 2619) : number(device, "clock", 1980);
    return 0;
}
int nvmlDeviceGetTemperatureThreshold(void *device, int threshold, unsigned int *out) {
    ENTER(device);
    if (threshold != 1) return 3;
    *out = number(device, "slowdown_temperature", 87);
    return 0;
}
int nvmlDeviceGetPcieThroughput(void *device, int direction, unsigned int *kilobytes) {
    ENTER(device);
    usleep(20000); /* as long as the driver measures */
    *kilobytes = number(device, direction == 0 ? "pcie_sent_kb_s" : "pcie_received_kb_s", 0);
    return 0;
}
int nvmlDeviceGetTemperature(void *device, int sensor, unsigned int *out) { ENTER(device); *out = number(device, "temperature", 34); return 0; }
int nvmlDeviceGetEccMode(void *device, unsigned int *now, unsigned int *pending) {
    ENTER(device);
    *now = number(device, "ecc", 1);
    *pending = number(device, "ecc_pending", *now);
    return 0;
}
int nvmlDeviceGetMigMode(void *device, unsigned int *now, unsigned int *pending) {
    ENTER(device);
    *now = *pending = number(device, "mig", 0);
    return 0;
}
int nvmlDeviceGetTotalEccErrors(void *device, int type, int counter, unsigned long long *out) {
    ENTER(device);
    *out = counter == 0 ? number(device, type == 0 ? "ecc_corrected" : "ecc_uncorrected", 0)
                        : number(device, type == 0 ? "ecc_lifetime_corrected" : "ecc_lifetime_uncorrected", 0);
    return 0;
}
int nvmlDeviceGetRemappedRows(void *device, unsigned int *corrected, unsigned int *uncorrected, unsigned int *pending, unsigned int *failure) {
    ENTER(device);
    *corrected = number(device, "remapped_corrected", 0);
    *uncorrected = number(device, "remapped_uncorrected", 0);
    *pending = number(device, "remap_pending", 0);
    *failure = number(device, "remap_failure", 0);
    return 0;
}
int nvmlDeviceGetMemoryErrorCounter(void *device, int type, int counter, int location, unsigned long long *out) {
    ENTER(device);
    if (location != 7) return 3;
    *out = number(device, type == 0 ? "sram_corrected" : "sram_uncorrected", 0);
    return 0;
}
typedef struct {
    unsigned int version;
    unsigned long long total_parity, total_secded, total_corrected, parity, secded, corrected;
    unsigned long long l2, sm, pcie, mcu, other;
    unsigned int worn;
} sram_t;
int nvmlDeviceGetSramEccErrorStatus(void *device, sram_t *out) {
    ENTER(device);
    out->parity = number(device, "sram_uncorrected", 0);
    out->secded = 0;
    out->worn = number(device, "sram_worn", 0);
    return 0;
}
typedef struct { unsigned int version; int margin; } margin_t;
int nvmlDeviceGetMarginTemperature(void *device, margin_t *out) { ENTER(device); out->margin = number(device, "margin", 40); return 0; }
int nvmlDeviceGetInforomImageVersion(void *device, char *out, unsigned int length) { ENTER(device); return copy("inforom", device, "G520.0200.00.05", out, length); }
int nvmlDeviceGetGspFirmwareVersion(void *device, char *out) { ENTER(device); return copy("gsp", device, "570.124.06", out, 64); }
typedef struct { unsigned int max, high, partial, low, none; } histogram_t;
int nvmlDeviceGetRowRemapperHistogram(void *device, histogram_t *out) {
    ENTER(device);
    out->max = 640;
    out->high = out->partial = 0;
    out->low = number(device, "banks_low", 0);
    out->none = number(device, "banks_none", 0);
    return 0;
}
int nvmlDeviceGetNvLinkState(void *device, unsigned int link, unsigned int *active) {
    char key[32];
    ENTER(device);
    if (link >= number(device, "nvlinks", 18)) return 3;
    snprintf(key, sizeof key, "nvlink%u", link);
    *active = number(device, key, 1);
    return 0;
}
typedef struct {
    unsigned int version;
    unsigned char cluster[16];
    unsigned int status, clique, state, mask;
    unsigned char summary;
} fabric_t;
int nvmlDeviceGetGpuFabricInfoV(void *device, fabric_t *out) {
    ENTER(device);
    out->status = 0;
    out->state = number(device, "fabric_state", 3);
    out->mask = number(device, "fabric_mask", 0);
    out->summary = number(device, "fabric_summary", 1);
    return 0;
}
typedef struct {
    uint32_t field, scope;
    int64_t timestamp, latency;
    int32_t type, code;
    union { unsigned long long number; double real; } value;
} field_t;
int nvmlDeviceGetFieldValues(void *device, int count, field_t *values) {
    ENTER(device);
    for (int i = 0; i < count; i++) {
        char key[32];
        long long found;
        snprintf(key, sizeof key, "field%u", values[i].field);
        if (values[i].field == 164) snprintf(key, sizeof key, "nvlink%u_mb_s", values[i].scope);
        found = number(device, key, values[i].field == 230 ? 0 : values[i].field == 164 ? 26562 : -1);
        values[i].code = found < 0 ? 3 : 0;
        values[i].type = 3;
        values[i].value.number = found < 0 ? 0 : (unsigned long long)found;
    }
    return 0;
}
typedef struct { unsigned long long total, free, used; } memory_t;
int nvmlDeviceGetMemoryInfo(void *device, memory_t *out) {
    ENTER(device);
    out->total = 85520809984ULL;
    out->used = number(device, "memory_used", 4194304);
    out->free = out->total - out->used;
    return 0;
}
typedef struct { unsigned int pid; unsigned long long memory; unsigned int instance, compute; } process_t;
int nvmlDeviceGetComputeRunningProcesses_v3(void *device, unsigned int *count, process_t *out) {
    long long pid;
    ENTER(device);
    pid = number(device, "process", 0);
    if (!pid) { *count = 0; return 0; }
    if (*count < 1 || !out) { *count = 1; return INSUFFICIENT_SIZE; }
    *count = 1;
    out[0].pid = (unsigned int)pid;
    out[0].memory = number(device, "process_memory", 1073741824);
    out[0].instance = out[0].compute = 0xFFFFFFFFu;
    return 0;
}
