// Makes launches from many fibers of Boost.Context; after every launch, another fiber runs. Arguments: FIBERS LAUNCHES
#include <boost/context/fiber.hpp>
#include <boost/context/fixedsize_stack.hpp>

#include <cstdlib>
#include <utility>
#include <vector>

namespace context = boost::context;

extern "C" void launch_step(int n);
extern "C" void wait_for_all(void);

#define OWN_FRAME __attribute__((noinline, noclone))

OWN_FRAME static void dig(int depth, int launch)
{
    if (depth > 0)
        dig(depth - 1, launch);
    else
        launch_step(launch);
    __asm__ volatile("" ::: "memory");
}

int main(int, char **argv)
{
    const int fibers = std::atoi(argv[1]), launches = std::atoi(argv[2]);
    std::vector<context::fiber> waiting;
    for (int number = 0; number < fibers; number++)
        waiting.emplace_back(std::allocator_arg, context::fixedsize_stack(64 << 10),
                             [number, launches](context::fiber &&main) {
                                 for (int launch = 0; launch < launches; launch++) {
                                     dig((number + launch) % 20, launch);
                                     main = std::move(main).resume();
                                 }
                                 return std::move(main);
                             });
    for (int turn = 0; turn <= launches; turn++)
        for (auto &fiber : waiting)
            fiber = std::move(fiber).resume();
    wait_for_all();
    return 0;
}
