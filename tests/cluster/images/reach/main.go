// reach lets a loopback port of this machine lead into a network namespace that has no way in.
//
//	reach listen HOST:PORT COMMAND...   runs COMMAND with the listening socket as file descriptor 3
//	reach serve HOST:PORT               takes connections from file descriptor 3, and carries them to HOST:PORT as seen here
//
// A socket stays in the namespace in which it was made, whoever holds it; connections are made in that of the process.
package main

import (
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"sync"
	"syscall"
)

const inherited = 3

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "reach:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	switch {
	case len(args) >= 3 && args[0] == "listen":
		return listen(args[1], args[2:])
	case len(args) == 2 && args[0] == "serve":
		return serve(args[1])
	}
	return fmt.Errorf("usage: reach listen HOST:PORT COMMAND... | reach serve HOST:PORT")
}

func listen(address string, command []string) error {
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return err
	}
	// The duplicate is closed at exec, the copy with the known number is not.
	file, err := listener.(*net.TCPListener).File()
	if err != nil {
		return err
	}
	if int(file.Fd()) == inherited {
		return fmt.Errorf("file descriptor %d is taken", inherited)
	}
	if err := syscall.Dup3(int(file.Fd()), inherited, 0); err != nil {
		return err
	}
	program, err := exec.LookPath(command[0])
	if err != nil {
		return err
	}
	return syscall.Exec(program, command, os.Environ())
}

func serve(target string) error {
	listener, err := net.FileListener(os.NewFile(inherited, "listener"))
	if err != nil {
		return err
	}
	for {
		caller, err := listener.Accept()
		if err != nil {
			return err
		}
		go carry(caller.(*net.TCPConn), target)
	}
}

// carry copies both ways until both ends have said all they had to say.
func carry(caller *net.TCPConn, target string) {
	defer caller.Close()
	connection, err := net.Dial("tcp", target)
	if err != nil {
		return
	}
	defer connection.Close()
	var both sync.WaitGroup
	for _, pair := range [][2]*net.TCPConn{{caller, connection.(*net.TCPConn)}, {connection.(*net.TCPConn), caller}} {
		both.Go(func() {
			// A broken connection ends the other half, too.
			if _, err := io.Copy(pair[0], pair[1]); err != nil {
				caller.Close()
				connection.Close()
			}
			pair[0].CloseWrite()
		})
	}
	both.Wait()
}
