// deployer is what a deployer pod runs in tests: it works for a while and ends as it is told to.
package main

import (
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"
)

func main() {
	work := flag.Duration("for", time.Hour, "how long it works")
	code := flag.Int("exit", 0, "the code that it ends with")
	stubborn := flag.Bool("ignore-term", false, "whether SIGTERM changes nothing")
	mebibytes := flag.Int("eat-mib", 0, "memory that it takes and writes to")
	fill := flag.Int("fill-mib", 0, "what it writes to the file")
	file := flag.String("fill-file", "", "the file that it writes")
	flag.Parse()

	asked := make(chan os.Signal, 1)
	signal.Notify(asked, syscall.SIGTERM)
	eaten := make([][]byte, 0, *mebibytes)
	for range *mebibytes {
		piece := make([]byte, 1<<20)
		for i := 0; i < len(piece); i += 4096 {
			piece[i] = 1
		}
		eaten = append(eaten, piece)
	}
	if *file != "" {
		if err := os.WriteFile(*file, make([]byte, *fill<<20), 0o600); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
	}
	fmt.Printf("deployer works for %s, with %d MiB\n", *work, len(eaten))
	done := time.After(*work)
	for {
		select {
		case <-done:
			fmt.Printf("deployer ends with %d\n", *code)
			os.Exit(*code)
		case <-asked:
			fmt.Println("deployer was asked to end")
			if !*stubborn {
				os.Exit(143)
			}
		}
	}
}
