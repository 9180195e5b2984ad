/* The part of NVTX that test programs need, written from NVTX's documented interface. The header defines a table of
 * functions that do nothing. The first NVTX call loads the tool that NVTX_INJECTION64_PATH names, and the tool replaces
 * the functions in the table. As with the real header, each object file that includes this header has its own table. */
#ifndef NVTX_MINI_H
#define NVTX_MINI_H

#include <dlfcn.h>
#include <stdint.h>
#include <stdlib.h>
#include <wchar.h>

typedef struct nvtxDomain *nvtxDomainHandle_t;
typedef struct nvtxString *nvtxStringHandle_t;
typedef uint64_t nvtxRangeId_t;
typedef struct nvtxEventAttributes_t {
    uint16_t version, size;
    uint32_t category;
    int32_t colorType;
    uint32_t color;
    int32_t payloadType, reserved0;
    uint64_t payload;
    int32_t messageType;
    union {
        const char *ascii;
        const wchar_t *unicode;
        nvtxStringHandle_t registered;
    } message;
} nvtxEventAttributes_t;
enum { NVTX_MESSAGE_TYPE_ASCII = 1, NVTX_MESSAGE_TYPE_UNICODE = 2, NVTX_MESSAGE_TYPE_REGISTERED = 3 };
enum { NVTX_NO_PUSH_POP_TRACKING = -2 };

typedef void (*NvtxFunction_)(void);
static NvtxFunction_ nvtx_core_[16], nvtx_core2_[16];
static NvtxFunction_ *nvtx_core_slots_[17], *nvtx_core2_slots_[17];

static int nvtx_module_(uint32_t module, NvtxFunction_ ***table, unsigned *size)
{
    NvtxFunction_ **slots = module == 1 ? nvtx_core_slots_ : module == 5 ? nvtx_core2_slots_ : NULL;
    if (!slots)
        return 0;
    *table = slots;
    *size = 16;
    return 1;
}

static const void *nvtx_export_table_(uint32_t id)
{
    static const struct {
        size_t struct_size;
        int (*module)(uint32_t, NvtxFunction_ ***, unsigned *);
    } callbacks = {sizeof callbacks, nvtx_module_};
    return id == 1 ? &callbacks : NULL;
}

static void nvtx_once_(void)
{
    static int done;
    const char *path = getenv("NVTX_INJECTION64_PATH");
    void *library;
    int (*initialize)(const void *(*)(uint32_t)), at;
    if (done)
        return;
    done = 1;
    for (at = 1; at < 16; at++) {
        nvtx_core_slots_[at] = &nvtx_core_[at];
        nvtx_core2_slots_[at] = &nvtx_core2_[at];
    }
    library = path ? dlopen(path, RTLD_LAZY) : NULL;
    if (!library)
        return;
    *(void **)&initialize = dlsym(library, "InitializeInjectionNvtx2");
    if (!initialize || !initialize(nvtx_export_table_))
        dlclose(library);
}

#define NVTX_CALL_(table, number, type, absent, ...)                                                    \
    (nvtx_once_(), nvtx_##table##_[number] ? ((type)nvtx_##table##_[number])(__VA_ARGS__) : (absent))
#define nvtxRangeStartA(text) NVTX_CALL_(core, 5, nvtxRangeId_t(*)(const char *), (nvtxRangeId_t)0, text)
#define nvtxRangeEnd(id) NVTX_CALL_(core, 7, void (*)(nvtxRangeId_t), (void)0, id)
#define nvtxRangePushEx(attributes)                                                                     \
    NVTX_CALL_(core, 8, int (*)(const nvtxEventAttributes_t *), NVTX_NO_PUSH_POP_TRACKING, attributes)
#define nvtxRangePushA(text) NVTX_CALL_(core, 9, int (*)(const char *), NVTX_NO_PUSH_POP_TRACKING, text)
#define nvtxRangePushW(text) NVTX_CALL_(core, 10, int (*)(const wchar_t *), NVTX_NO_PUSH_POP_TRACKING, text)
#define nvtxRangePop() NVTX_CALL_(core, 11, int (*)(void), NVTX_NO_PUSH_POP_TRACKING)
#define nvtxDomainRangeStartEx(domain, attributes)                                                      \
    NVTX_CALL_(core2, 2, nvtxRangeId_t(*)(nvtxDomainHandle_t, const nvtxEventAttributes_t *), (nvtxRangeId_t)0, \
               domain, attributes)
#define nvtxDomainRangeEnd(domain, id)                                                                  \
    NVTX_CALL_(core2, 3, void (*)(nvtxDomainHandle_t, nvtxRangeId_t), (void)0, domain, id)
#define nvtxDomainRangePushEx(domain, attributes)                                                       \
    NVTX_CALL_(core2, 4, int (*)(nvtxDomainHandle_t, const nvtxEventAttributes_t *),                    \
               NVTX_NO_PUSH_POP_TRACKING, domain, attributes)
#define nvtxDomainRangePop(domain)                                                                      \
    NVTX_CALL_(core2, 5, int (*)(nvtxDomainHandle_t), NVTX_NO_PUSH_POP_TRACKING, domain)
#define nvtxDomainRegisterStringA(domain, text)                                                         \
    NVTX_CALL_(core2, 10, nvtxStringHandle_t(*)(nvtxDomainHandle_t, const char *), NULL, domain, text)
#define nvtxDomainCreateA(name) NVTX_CALL_(core2, 12, nvtxDomainHandle_t(*)(const char *), NULL, name)

static inline nvtxEventAttributes_t nvtx_text(const char *text)
{
    nvtxEventAttributes_t attributes = {3, sizeof attributes, 0, 0, 0, 0, 0, 0, NVTX_MESSAGE_TYPE_ASCII, {text}};
    return attributes;
}

static inline nvtxEventAttributes_t nvtx_registered(nvtxStringHandle_t text)
{
    nvtxEventAttributes_t attributes = {3, sizeof attributes, 0, 0, 0, 0, 0, 0, NVTX_MESSAGE_TYPE_REGISTERED, {NULL}};
    attributes.message.registered = text;
    return attributes;
}

#endif
