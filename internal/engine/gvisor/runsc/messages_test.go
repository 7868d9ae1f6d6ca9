package runsc

import (
	"bytes"
	"encoding/json"
	"net"
	"reflect"
	"testing"

	"github.com/google/go-cmp/cmp"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"gvisor.dev/gvisor/pkg/sentry/control"
	"gvisor.dev/gvisor/pkg/sentry/kernel/auth"
	"gvisor.dev/gvisor/pkg/sentry/seccheck"
	"gvisor.dev/gvisor/pkg/urpc"
	"gvisor.dev/gvisor/runsc/boot"
	"gvisor.dev/gvisor/runsc/config"
	"gvisor.dev/gvisor/runsc/container"
	"gvisor.dev/gvisor/runsc/specutils"
)

// fill sets v and all values below it to distinct non-zero values.
func fill(v reflect.Value, next *int) {
	*next++
	switch {
	case v.Type() == reflect.TypeFor[urpc.FilePayload]():
	case v.Type() == reflect.TypeFor[*specs.Spec]():
		v.Set(reflect.ValueOf(&specs.Spec{Version: "1.2", Hostname: "h"}))
	case v.Type() == reflect.TypeFor[*specs.Mount]():
		v.Set(reflect.ValueOf(&specs.Mount{Source: "/s", Destination: "/d"}))
	case v.Type() == reflect.TypeFor[*config.Config]():
		v.Set(reflect.ValueOf(&config.Config{RootDir: "/r", Platform: "p", Rootless: true}))
	case v.Type() == reflect.TypeFor[net.IP]():
		v.Set(reflect.ValueOf(net.IPv4(1, 2, 3, byte(*next)).To4()))
	case v.Type() == reflect.TypeFor[Upper](), v.Type() == reflect.TypeFor[specutils.GoferMountConfUpperType]():
		v.SetUint(3)
	case v.Type() == reflect.TypeFor[Lower](), v.Type() == reflect.TypeFor[specutils.GoferMountConfLowerType]():
		v.SetUint(2)
	case v.Kind() == reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(v.Elem(), next)
	case v.Kind() == reflect.Struct:
		for i := range v.NumField() {
			fill(v.Field(i), next)
		}
	case v.Kind() == reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 2, 2))
		for i := range 2 {
			fill(v.Index(i), next)
		}
	case v.Type() == reflect.TypeFor[map[string]string]():
		v.Set(reflect.ValueOf(map[string]string{"key": "value"}))
	case v.Kind() == reflect.Map:
		v.Set(reflect.MakeMap(v.Type()))
		v.SetMapIndex(reflect.ValueOf("key"), reflect.ValueOf("value"))
	case v.Kind() == reflect.String:
		v.SetString(string(rune('a' + *next%26)))
	case v.Kind() == reflect.Bool:
		v.SetBool(true)
	case v.CanInt():
		v.SetInt(int64(*next%100 + 1))
	case v.CanUint():
		v.SetUint(uint64(*next%100 + 1))
	default:
		panic(v.Type().String())
	}
}

// strict decodes JSON that names no field which the type does not have.
func strict(t *testing.T, data []byte, to any) {
	t.Helper()
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	if err := d.Decode(to); err != nil {
		t.Errorf("%T: %v in %s", to, err, data)
	}
}

func encoded(t *testing.T, v any) []byte {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// lost returns the values in ours that are missing at the same place in theirs.
func lost(path string, ours, theirs any) []string {
	var all []string
	switch ours := ours.(type) {
	case map[string]any:
		of, _ := theirs.(map[string]any)
		for name, value := range ours {
			all = append(all, lost(path+"."+name, value, of[name])...)
		}
	case []any:
		of, _ := theirs.([]any)
		if len(of) != len(ours) {
			return []string{path}
		}
		for i := range ours {
			all = append(all, lost(path, ours[i], of[i])...)
		}
	default:
		if !reflect.DeepEqual(ours, theirs) {
			all = []string{path}
		}
	}
	return all
}

func plain(t *testing.T, data []byte) (v any) {
	t.Helper()
	if err := json.Unmarshal(data, &v); err != nil {
		t.Fatal(err)
	}
	return v
}

// TestMessagesAreGVisors checks that sent messages have the same values in gVisor's own types.
// mission: A1
func TestMessagesAreGVisors(t *testing.T) {
	t.Parallel()
	for _, pair := range []struct{ ours, theirs any }{
		{&createArgs{}, &boot.CreateArgs{}},
		{&startArgs{}, &boot.StartArgs{}},
		{&waitPIDArgs{}, &boot.WaitPIDArgs{}},
		{&signalArgs{}, &boot.SignalArgs{}},
		{&readArgs{}, &control.ReadOpts{}},
		{&usageArgs{}, &control.MemoryUsageOpts{}},
		{&traceArgs{}, &boot.CreateTraceSessionArgs{}},
		{&saveArgs{}, &control.SaveOpts{}},
		{&restoreArgs{}, &boot.RestoreOpts{}},
		{&Exec{}, &control.ExecArgs{}},
		{&Links{}, &boot.CreateLinksAndRoutesArgs{}},
		{&openMountResult{}, &container.OpenMountResult{}},
	} {
		n := 0
		fill(reflect.ValueOf(pair.ours).Elem(), &n)
		sent := encoded(t, pair.ours)
		strict(t, sent, pair.theirs)
		for _, path := range lost("", plain(t, sent), plain(t, encoded(t, pair.theirs))) {
			t.Errorf("%T: %s does not arrive", pair.ours, path)
		}
	}
}

// TestAnswersAreGVisors checks that received messages have the values of gVisor's own types, where ours have fields.
// mission: A1
func TestAnswersAreGVisors(t *testing.T) {
	t.Parallel()
	for _, pair := range []struct{ ours, theirs any }{
		{&usage{}, &control.MemoryUsage{}},
		{&Process{}, &control.Process{}},
		{&openMountArgs{}, &container.OpenMountArgs{}},
	} {
		n := 0
		fill(reflect.ValueOf(pair.theirs).Elem(), &n)
		got := encoded(t, pair.theirs)
		if err := json.Unmarshal(got, pair.ours); err != nil {
			t.Errorf("%T: %v", pair.ours, err)
		}
		for _, path := range lost("", plain(t, encoded(t, pair.ours)), plain(t, got)) {
			t.Errorf("%T: %s does not arrive", pair.ours, path)
		}
	}
}

// mission: A1
func TestConstantsAreGVisors(t *testing.T) {
	t.Parallel()
	methods := map[string]string{
		startRoot: boot.ContMgrRootContainerStart, setNetworkArgs: boot.ContMgrSetNetworkArgs,
		createSubcontainer: boot.ContMgrCreateSubcontainer,
		startSubcontainer:  boot.ContMgrStartSubcontainer, destroySubcontainer: boot.ContMgrDestroySubcontainer,
		executeAsync: boot.ContMgrExecuteAsync,
		wait:         boot.ContMgrWait, waitPID: boot.ContMgrWaitPID, signal: boot.ContMgrSignal,
		processes: boot.ContMgrProcesses, pause: boot.ContMgrPause,
		resume: boot.ContMgrResume, createTraceSession: boot.ContMgrCreateTraceSession, collectUsage: boot.UsageCollect,
		checkpoint: boot.ContMgrCheckpoint, restore: boot.ContMgrRestore,
		restoreSubcontainer: boot.ContMgrRestoreSubcontainer, readFile: boot.FsRead,
	}
	for ours, theirs := range methods {
		if ours != theirs {
			t.Errorf("%q is %q", ours, theirs)
		}
	}
	if boot.DeliverToProcess != toProcess || boot.DeliverToForegroundProcessGroup != toForeground {
		t.Error("gVisor's ways to deliver signals have other numbers")
	}
	if traceSession != seccheck.DefaultSessionName {
		t.Errorf("the trace session is %q", seccheck.DefaultSessionName)
	}
	for ours, theirs := range map[MountConf]specutils.GoferMountConf{
		{Lower: Gofer}: {Lower: specutils.Lisafs},
		{Lower: Erofs}: {Lower: specutils.Erofs},
		{Lower: Erofs, Upper: Anonymous, Size: "7"}: {Lower: specutils.Erofs, Upper: specutils.AnonOverlay, Size: "7"},
	} {
		if ours.String() != theirs.String() || !bytes.Equal(encoded(t, ours), encoded(t, theirs)) {
			t.Errorf("%s is %s", ours, theirs)
		}
	}
	capabilities := auth.TaskCapabilities{PermittedCaps: 1, InheritableCaps: 2, EffectiveCaps: 3, BoundingCaps: 4,
		AmbientCaps: 5}
	if got := encoded(t, Capabilities{PermittedCaps: 1, InheritableCaps: 2, EffectiveCaps: 3, BoundingCaps: 4,
		AmbientCaps: 5}); !bytes.Equal(got, encoded(t, capabilities)) {
		t.Errorf("capabilities are %s", got)
	}
	var links boot.CreateLinksAndRoutesArgs
	strict(t, encoded(t, loopback(true)), &links)
	want := boot.DefaultLoopbackLink
	want.GVisorGRO = true
	if d := cmp.Diff(string(encoded(t, []boot.LoopbackLink{want})), string(encoded(t, links.LoopbackLinks))); d != "" {
		t.Error(d)
	}
}
