// Stacks of C++ code: constructors, virtual calls through thunks, cleanup paths, std::function, sort.
#include <algorithm>
#include <functional>
#include <string>
#include <vector>

typedef void (*hook)();
static hook current;
static volatile int sink;

struct A { virtual ~A() { current(); sink = sink + 1; } virtual int f(int n) = 0; long pad[3]; };
struct B { virtual ~B() {} virtual int g(int n) { return n; } long pad[5]; };
struct C : A, B {
    std::string text;
    C() : text("a text too long for the small buffer of a string") { current(); sink = sink + 1; }
    int f(int n) override { std::vector<int> v(n + 1, 2); current(); return v.back() + int(text.size()); }
    int g(int n) override { alignas(64) char room[64]; room[n & 63] = 1; sink = room[3]; current(); return n + room[5]; }
    ~C() override {}
};
struct Guard { ~Guard() { current(); sink = sink + 1; } };

static int thrower(int n) {
    Guard guard;
    if (n == 0) throw std::string("out");
    return thrower(n - 1) + 1;
}

extern "C" void classes(hook h) {
    current = h;
    { C c; A *a = &c; B *b = &c; sink = a->f(3) + b->g(4); }
    std::function<int(int)> f = [&](int n) { h(); return n + sink; };
    sink = f(2);
    std::vector<int> v{ 5, 3, 9, 1, 7 };
    std::sort(v.begin(), v.end(), [&](int a, int b) { h(); return a < b; });
}

extern "C" void exceptions(hook h) {
    current = h;
    try { sink = thrower(5); } catch (const std::string &) { h(); sink = sink + 1; }
    sink = sink + 1;
}
