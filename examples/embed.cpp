// embed.c in C++. The window is an object: it is open while the object exists, so an exception closes it, too.
//
//     cargo build --release
//     c++ -std=c++11 -O2 -g examples/embed.cpp -o embed++ -I include -I /usr/local/cuda/include
//         -L target/release -lgpuflame -L /usr/local/cuda/lib64 -lcudart -Wl,-rpath,$PWD/target/release
//     ./embed++
//
// The second command is one line. embed.c shows how to inject gpuflame and how to run on the simulated stack.

#include "call_site.h"

#include <exception>
#include <gpuflame.h>
#include <iostream>
#include <stdexcept>
#include <string>

#ifdef GPUSIM
#include <cuda_mini.h>
#else
#include <cuda_runtime_api.h>
#endif

const int launches = 100;
const std::size_t bytes = 1 << 20;

static void check(cudaError_t error, const char *call)
{
    if (error != cudaSuccess)
        throw std::runtime_error(std::string(call) + ": " + cudaGetErrorString(error));
}

// Device memory, which the destructor frees.
class Memory {
public:
    Memory() : address_(nullptr) { check(cudaMalloc(&address_, bytes), "cudaMalloc"); }
    ~Memory() { cudaFree(address_); }
    Memory(const Memory &) = delete;
    Memory &operator=(const Memory &) = delete;
    void *address() const { return address_; }

private:
    void *address_;
};

OWN_FRAME static void launch(const Memory &memory)
{
    ENTER();
    for (int i = 0; i < launches; i++) {
        CUDA_CALL_SITE();
        check(cudaMemsetAsync(memory.address(), i, bytes, nullptr), "cudaMemsetAsync");
    }
    LEAVE();
}

OWN_FRAME static void warm_up(const Memory &memory)
{
    ENTER();
    launch(memory);
    LEAVE();
}

// The part of the program that is recorded. This function need not wait for the GPU, because gpuflame records launched
// work until it ends.
OWN_FRAME static void measure(const Memory &memory)
{
    ENTER();
    gpuflame::Window window;
    if (!window)
        std::cerr << "embed: not recorded: " << gpuflame_last_error() << '\n';
    launch(memory);
    LEAVE();
}

OWN_FRAME static void wind_down(const Memory &memory)
{
    ENTER();
    launch(memory);
    LEAVE();
}

int main()
try {
    ENTER();
    const Memory memory;
    warm_up(memory);
    measure(memory);
    wind_down(memory);
    check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
    std::cout << 3 * launches << " launches; gpuflame " << gpuflame_version() << " was asked for the middle "
              << launches << '\n';
    LEAVE();
    return 0;
} catch (const std::exception &error) {
    std::cerr << "embed: " << error.what() << '\n';
    return 1;
}
