// The Go client's lock, driven by lines: `go lock PATH` begins to acquire, `go release` releases. Each line is
// answered with a line that starts with "="; lines with "*" say what is held.
package main

import (
	"bufio"
	"fmt"
	"io/ioutil"
	"log"
	"os"
	"strings"
	"time"

	"github.com/samuel/go-zookeeper/zk"
)

func main() {
	log.SetOutput(ioutil.Discard)
	conn, _, err := zk.Connect(strings.Split(os.Args[1], ","), 5*time.Second)
	if err != nil {
		fmt.Println("*", err)
		os.Exit(1)
	}
	release := make(chan bool)
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		words := strings.Split(lines.Text(), " ")
		fmt.Println("= done")
		if words[1] == "release" {
			release <- true
			continue
		}
		go hold(conn, words[0], words[2], release)
	}
}

func hold(conn *zk.Conn, name string, path string, release chan bool) {
	lock := zk.NewLock(conn, path, zk.WorldACL(zk.PermAll))
	if err := lock.Lock(); err != nil {
		fmt.Println("*", name, err)
		return
	}
	fmt.Println("*", name, "holds")
	<-release
	if err := lock.Unlock(); err != nil {
		fmt.Println("*", name, err)
		return
	}
	fmt.Println("*", name, "has released")
}
