// Launches from many goroutines. Arguments: GOROUTINES LAUNCHES
package main

// #include <stdlib.h>
// void launch_step(int n);
// void wait_for_all(void);
import "C"

import (
	"os"
	"runtime"
	"strconv"
	"sync"
)

//go:noinline
func dig(depth, launch int) int {
	if depth > 0 {
		return dig(depth-1, launch) + 1
	}
	C.launch_step(C.int(launch))
	runtime.Gosched()
	return 0
}

func main() {
	goroutines, _ := strconv.Atoi(os.Args[1])
	launches, _ := strconv.Atoi(os.Args[2])
	var all sync.WaitGroup
	for number := 0; number < goroutines; number++ {
		all.Add(1)
		go func(number int) {
			defer all.Done()
			for launch := 0; launch < launches; launch++ {
				// The calls are so deep that Go sometimes moves the goroutine's stack.
				dig((number+launch)%20*50, launch)
			}
		}(number)
	}
	all.Wait()
	C.wait_for_all()
	// Go ends a process without running C's exit handlers, so gpuflame would write no outputs. Therefore the program calls
	// C's `exit`.
	C.exit(0)
}
