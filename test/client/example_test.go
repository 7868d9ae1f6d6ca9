package client_test

import (
	"context"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/RelevanceAI/harvest/client"
	"github.com/RelevanceAI/harvest/client/api"
	"github.com/RelevanceAI/harvest/client/errors"
)

func ExampleClient_Execute() {
	ctx := context.Background()
	data, end := exampleServer(ctx)
	defer end()

	harvest, err := client.Connect(ctx, data) // the data directory of `harvest up`
	if err != nil {
		panic(err)
	}
	defer harvest.Close()
	result, err := harvest.Execute(ctx, "print(6 * 7)", 10*time.Second)
	if err != nil {
		panic(err)
	}
	fmt.Println(result.ReturnCode, result.Stdout)
	// Output: 0 42
}

// ExampleClient_Start connects the input and output of a running command.
func ExampleClient_Start() {
	ctx := context.Background()
	data, end := exampleServer(ctx)
	defer end()

	harvest, err := client.Connect(ctx, data) // the data directory of `harvest up`
	if err != nil {
		panic(err)
	}
	defer harvest.Close()
	box, err := harvest.CreateSandbox(ctx, api.SandboxRequest{Name: "dev"}, nil)
	if err != nil {
		panic(err)
	}
	process, err := harvest.Start(ctx, box.ID,
		api.ExecRequest{Args: []string{"sh", "-c", "read name; echo hello $name; exit 3"}},
		client.Streams{Stdin: strings.NewReader("world\n"), Stdout: os.Stdout, Stderr: os.Stderr})
	if err != nil {
		panic(err) // it did not start
	}
	result, err := process.Wait(ctx)
	if err != nil {
		panic(err) // the exit is unknown
	}
	fmt.Println("it ended with", result.ReturnCode)
	// Output:
	// hello world
	// it ended with 3
}

// ExampleClient_Events prints the events of a sandbox from its beginning. A broken connection is restored, and no event
// is missing or repeated.
func ExampleClient_Events() {
	ctx := context.Background()
	data, end := exampleServer(ctx)
	defer end()

	harvest, err := client.Connect(ctx, data) // the data directory of `harvest up`
	if err != nil {
		panic(err)
	}
	defer harvest.Close()
	if _, err := harvest.CreateSandbox(ctx, api.SandboxRequest{Name: "dev"}, nil); err != nil {
		panic(err)
	}
	for e, err := range harvest.Events(ctx, client.Follow{Stream: "dev"}) {
		if err != nil {
			panic(err) // ctx has ended, or nothing can be followed
		}
		if e.Type != "sandbox.stage" { // e.Data has the details
			fmt.Println(e.Type)
		}
		if e.Type == "sandbox.ready" {
			break // which ends the connection
		}
	}
	// Output:
	// sandbox.starting
	// sandbox.ready
}

// exampleServer stands in for harvest up.
func exampleServer(ctx context.Context) (data string, end func()) {
	data, err := os.MkdirTemp("", "harvest")
	if err != nil {
		panic(err)
	}
	_, stop, err := serve(ctx, data)
	if err != nil {
		panic(err)
	}
	return data, func() {
		if err := errors.Join(stop(), os.RemoveAll(data)); err != nil {
			panic(err)
		}
	}
}
