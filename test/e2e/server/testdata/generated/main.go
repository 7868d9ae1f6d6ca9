// Command generated uses a client that was generated from the server's OpenAPI document, in package api beside it, by
// TestGeneratedClient: it creates a sandbox, runs a command in it, and deletes it. HARVEST_URL and HARVEST_API_KEY name
// the server.
package main

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"time"

	"github.com/RelevanceAI/harvest/tools/peers/generated/api"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run() error {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	c, err := api.NewClientWithResponses(os.Getenv("HARVEST_URL"),
		api.WithRequestEditorFn(func(_ context.Context, r *http.Request) error {
			r.Header.Set("Authorization", "Bearer "+os.Getenv("HARVEST_API_KEY"))
			return nil
		}))
	if err != nil {
		return err
	}
	name := "generated"
	made, err := c.PostV1SandboxesWithResponse(ctx, nil, api.SandboxRequest{Name: &name})
	if err != nil {
		return err
	}
	if made.JSON201 == nil || made.JSON201.Status != "running" {
		return fmt.Errorf("create: %s %s", made.Status(), made.Body)
	}
	args := []string{"sh", "-c", "echo $((6*7)); exit 3"}
	ran, err := c.PostV1SandboxesIdExecWithResponse(ctx, made.JSON201.Id, nil, api.ExecRequest{Args: &args})
	if err != nil {
		return err
	}
	if ran.JSON200 == nil || ran.JSON200.Returncode != 3 || ran.JSON200.Stdout != "42\n" {
		return fmt.Errorf("exec: %s %s", ran.Status(), ran.Body)
	}
	gone, err := c.DeleteV1SandboxesIdWithResponse(ctx, made.JSON201.Id, nil)
	if err != nil {
		return err
	}
	if gone.StatusCode() != http.StatusNoContent {
		return fmt.Errorf("delete: %s %s", gone.Status(), gone.Body)
	}
	again, err := c.PostV1SandboxesIdExecWithResponse(ctx, made.JSON201.Id, nil, api.ExecRequest{Args: &args})
	if err != nil {
		return err
	}
	if p := again.ApplicationproblemJSONDefault; p == nil || p.Status != http.StatusGone || p.Code == "" {
		return fmt.Errorf("exec after the end: %s %s", again.Status(), again.Body)
	}
	fmt.Fprintln(os.Stdout, "created, ran and deleted", made.JSON201.Id)
	return nil
}
