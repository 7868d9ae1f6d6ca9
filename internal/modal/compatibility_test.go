package modal_test

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	pb "github.com/modal-labs/modal-client/go/proto/modal_proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/RelevanceAI/harvest/internal/base/account"
	"github.com/RelevanceAI/harvest/internal/modal"
)

// TestCompatibility checks that the page names every RPC of both services, and what is done with it. With
// HARVEST_TEST_UPDATE=1 it writes the page.
func TestCompatibility(t *testing.T) {
	control, router := modal.Scopes()
	var page strings.Builder
	page.WriteString("# Modal's RPCs\n\nWhat Harvest does with each RPC of Modal's protocol. [Modal](modal.md) describes what that means for\n" +
		"programs. A refused call fails with a sentence and the code UNIMPLEMENTED.\n")
	for _, service := range []struct {
		name   string
		served map[string]account.Scope
		of     protoreflect.ServiceDescriptor
	}{
		{"ModalClient", control, pb.File_modal_proto_api_proto.Services().ByName("ModalClient")},
		{"TaskCommandRouter", router,
			pb.File_modal_proto_task_command_router_proto.Services().ByName("TaskCommandRouter")},
	} {
		fmt.Fprintf(&page, "\n## %s\n\n| RPC | since 0.1.0 |\n|---|---|\n", service.name)
		for i := range service.of.Methods().Len() {
			name := string(service.of.Methods().Get(i).Name())
			what := "served"
			if _, ok := service.served[name]; !ok {
				what = "refused"
			}
			fmt.Fprintf(&page, "| %s | %s |\n", name, what)
		}
		for _, name := range slices.Sorted(maps.Keys(service.served)) {
			if service.of.Methods().ByName(protoreflect.Name(name)) == nil { // of Python's SDK only
				fmt.Fprintf(&page, "| %s | served |\n", name)
			}
		}
	}
	const path = "../../docs/modal-compatibility.md"
	if os.Getenv("HARVEST_TEST_UPDATE") == "1" {
		if err := os.WriteFile(path, []byte(page.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	have, err := os.ReadFile(path)
	if err != nil || string(have) != page.String() {
		t.Errorf("the page is not what the code does (%v); write it with HARVEST_TEST_UPDATE=1", err)
	}
}
