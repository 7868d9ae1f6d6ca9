package python_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/RelevanceAI/harvest/internal/engine/fake"
	"github.com/RelevanceAI/harvest/internal/fleet"
	"github.com/RelevanceAI/harvest/internal/fleet/python"
	"github.com/RelevanceAI/harvest/internal/store"
)

// ExampleExecutor runs one piece of code. The engine here is the fake, which isolates nothing. The other engines are
// opened the same way.
func ExampleExecutor() {
	ctx := context.Background()
	dir, _ := os.MkdirTemp("", "harvest-example-")
	defer os.RemoveAll(dir)
	engine, _ := fake.Open(dir, fake.Options{})
	db, _ := store.Open(ctx, filepath.Join(dir, "harvest.db"))
	defer db.Close()
	fleet, _ := fleet.Open(ctx, fleet.Options{Engine: engine, Store: db.Sandboxes()})
	defer fleet.Close(ctx)
	executor := python.Executor{Fleet: fleet, Account: "me"}
	result, err := executor.Execute(ctx, "print(6*7)", time.Minute)
	fmt.Print(result.Stdout, result.ReturnCode, err)
	// Output:
	// 42
	// 0 <nil>
}
