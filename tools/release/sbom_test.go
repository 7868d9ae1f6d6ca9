package main

import (
	"strings"
	"testing"
)

func TestMergeOfSBOMs(t *testing.T) {
	t.Parallel()
	bom := func(program, module string) []byte {
		return []byte(`{"bomFormat": "CycloneDX", "metadata": {"component": {"bom-ref": "` + program + `"},
			"tools": [{"name": "gomod", "hashes": [{"content": "00"}]}]},
			"components": [{"bom-ref": "std"}, {"bom-ref": "` + module + `", "name": "` + module + `"}],
			"dependencies": [{"ref": "` + program + `", "dependsOn": ["std", "` + module + `"]},
			{"ref": "` + module + `"}]}`)
	}
	out, err := merge([][]byte{bom("harvest", "cobra"), bom("harvest/s3", "versitygw")})
	if err != nil {
		t.Fatal(err)
	}
	text := strings.Join(strings.Fields(string(out)), " ")
	for _, want := range []string{`"bomFormat": "CycloneDX"`, `"tools": [ { "name": "gomod" } ]`,
		`"components": [ { "bom-ref": "cobra", "name": "cobra" }, { "bom-ref": "std" }, { "bom-ref": "versitygw", `,
		`{ "ref": "harvest", "dependsOn": [ "cobra", "std", "versitygw" ] }`} {
		if !strings.Contains(text, want) {
			t.Errorf("%s does not have %s", text, want)
		}
	}
	if strings.Contains(text, `"harvest/s3"`) {
		t.Errorf("%s has a second program", text)
	}
	if _, err := merge([][]byte{[]byte("no JSON")}); err == nil {
		t.Error("merged text that is not JSON")
	}
}
