# Each step prints one line. V=1 shows all of its output, such as the names of downloads and packages.
#
# make run     builds Harvest, prepares this machine, and runs a line of Python in a sandbox
# make clients the command line alone, without the server, for macOS, Windows and 32-bit ARM
# make release  the files of a release in dist, from the last commit; VERSION=0.1.1 replaces the version of the file VERSION
# make release-check  builds a release twice, the second time without a build cache, and names files that differ
# make test    the quick suite, with the race detector: unit and conformance tests, a whole run of each command
# make test-long   all other tests; one that fails runs again alone, and fails the run if it fails each time
# make check   formatting, vet, the house's rules, staticcheck, known vulnerabilities
# make cover   the quick suite, as many long tests as there is time for, and the coverage gate
# make test-modal   the live test suites of Modal's own SDK against Harvest, and against Modal if HARVEST_TEST_MODAL_TOKEN_ID and _SECRET are set
# make test-s3      the long tests of S3: all of Go's own tree, a million files, ten minutes without S3; two hours
# make test-images   the same Dockerfiles with Harvest and BuildKit
# make test-kubernetes   a Kubernetes cluster of one node on this machine: needs root; the first use compiles it
# make image   the images for Kubernetes; TAG=registry.example.org/harvest PUSH=-push pushes them
# make test-software   small programs of many kinds in a sandbox, with a table of those that work; ten to twenty minutes, and the internet
# make test-security   the abuse list against a built server, as root and rootless, with a table; a quarter of an hour
# make bench   the benchmarks, with the peers that are installed beside them

# Runs a command as a step of that name.
STEP     := tools/scripts/step
TAG      ?= harvest
VERSION  ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
REVISION ?= $(shell git rev-parse HEAD 2>/dev/null)$(shell test -z "$$(git status --porcelain 2>/dev/null | head -1)" || echo +changes)
RELEASE  := github.com/RelevanceAI/harvest/internal/base/release
LDFLAGS  := -s -w -X $(RELEASE).version=$(VERSION) -X $(RELEASE).revision=$(REVISION)
# Programs with the race detector sleep for a second before they end, so that late reports are seen; the tests run hundreds of them.
export GORACE ?= atexit_sleep_ms=50
# What tools/testrun makes: test binaries, logs, durations.json, flaky.md.
RESULTS  := test-results
PACKAGES ?= ./...
TESTRUN  := bin/tools/testrun -out $(RESULTS) -wait test/e2e/ \
	-first internal/image/imagetest:TestBaseImage,test/e2e/image:TestAgentImageBuilds
# When long tests of make cover no longer start, and when they are stopped; and which third of them is the first.
START    ?= 40m
END      ?= 50m
TURN     ?= $(shell git rev-list --count HEAD 2>/dev/null || echo 0)
# Directories that the gate does not count: code of tests, programs that only developers run, internal/base/fault, and the
# code that runs in gVisor's own process, which has neither an environment nor a file system to write counters to (the
# snapshots of internal/engine/enginetest run it), and internal/engine/kubernetes, whose tests need the cluster of
# make test-kubernetes.
UNCOUNTED := test tools cmd/harvest/sentry internal/app/programs/pack internal/base/fault internal/base/testenv \
	internal/engine/container/pid1 internal/engine/enginetest internal/engine/gvisor/layer/agent internal/engine/gvisor/sentry \
	internal/engine/kubernetes \
	internal/image/imagetest internal/session/agent/agenttest internal/store/storetest

# The modules of Harvest. Those of tools/chart, tools/peers and tools/release have requirements of other programs.
MODULES  := . client tools

# Compilers that collect garbage less often need a sixth less time.
BUILD    := env GOGC=400 CGO_ENABLED=0 go build -v -trimpath
BUILD_TOOL := $(subst go build,go -C tools build,$(BUILD))

# Systems for which harvest is the command line alone, without the server.
CLIENTS := darwin/arm64 darwin/amd64 windows/amd64 linux/arm

# The version of a release: VERSION of the command line or the environment, or the file.
RELEASED := $(if $(filter file,$(origin VERSION)),$(shell cat VERSION),$(VERSION))
# Programs that run during the build run here, whatever GOARCH is.
PACK     := env GOOS= GOARCH= CGO_ENABLED=0 go run -v -trimpath ./internal/app/programs/pack
# What the server contains.
PROGRAMS := keeper sentry tools s3

.PHONY: build keeper clients man release release-check run test test-long test-modal test-s3 test-images test-kubernetes image test-software test-security check fmt vulncheck cover bench deps clean

# harvest is a small command line that contains the server, which contains the programs of its sandboxes: see
# internal/app/programs. One go build compiles the packages of all of them, and uses both the network and each core well;
# the server that it links lacks the programs, and is not used.
build: keeper
	@$(STEP) "build the server" \
		$(BUILD) -buildvcs=auto -tags keeper -ldflags "$(LDFLAGS)" -o bin/harvest-server ./cmd/harvest
	@$(STEP) "compress the server" $(PACK) bin/harvest-server internal/app/programs/server.zst
	@$(STEP) "build the command line" \
		$(BUILD) -buildvcs=auto -tags keeper,clientonly -ldflags "$(LDFLAGS)" -o bin/harvest ./cmd/harvest

keeper:
	@mkdir -p bin/programs
	@$(STEP) "build the programs of sandboxes" \
		$(BUILD) -ldflags "-s -w" -o bin/programs/ $(addprefix ./cmd/harvest/,$(PROGRAMS)) ./cmd/harvest
	@$(STEP) "compress the programs of sandboxes" sh -ec \
		'for program in $(PROGRAMS); do $(PACK) bin/programs/$$program internal/app/programs/$$program.zst; done'

clients:
	@set -e; for platform in $(CLIENTS); do os=$${platform%/*}; arch=$${platform#*/}; \
	$(STEP) "build harvest for $$platform" env GOARM=6 GOOS=$$os GOARCH=$$arch \
		$(BUILD) -ldflags "$(LDFLAGS)" -o bin/harvest-$$os-$$arch ./cmd/harvest; done

man:
	rm -rf bin/man
	@$(STEP) "write the manual pages" env GOOS= GOARCH= CGO_ENABLED=0 \
		go run -v -tags clientonly,man -trimpath -ldflags "$(LDFLAGS)" ./cmd/harvest man bin/man

# The Makefile of the release's own clone runs build, clients and man.
release:
	rm -rf dist bin/stage
	go -C tools/release run . build -source $(CURDIR) -version $(RELEASED) -stage $(CURDIR)/bin/stage
	go -C tools/release run . pack -stage $(CURDIR)/bin/stage -out $(CURDIR)/dist

# CACHE is the build cache of the second build: an empty one, unless it names a directory.
release-check: release
	@set -ex; temp=$$(mktemp -d); trap 'chmod -R u+w "$$temp"; rm -rf "$$temp"' EXIT; \
	GOCACHE="$(or $(CACHE),$$temp/cache)" go -C tools/release run . build -source $(CURDIR) -version $(RELEASED) -stage "$$temp/stage"; \
	go -C tools/release run . compare $(CURDIR)/bin/stage "$$temp/stage"; \
	go -C tools/release run . pack -stage "$$temp/stage" -out "$$temp/dist"; \
	go -C tools/release run . compare $(CURDIR)/dist "$$temp/dist"

run: build
	bin/harvest doctor --fix
	bin/harvest run --code 'print(6*7)'

deps:
	@tools/scripts/deps
	@$(STEP) "fetch the modules" sh -ec 'for m in $(MODULES); do go -C $$m list -test -deps ./... >/dev/null; done'

# A program of the module tools runs in the root of the repository, where go run -C would not start it.
bin/tools/%: FORCE
	@go -C tools build -o $(CURDIR)/$@ ./$*
FORCE:

test: deps bin/tools/testrun
	$(TESTRUN) quick $(PACKAGES)

test-long: deps bin/tools/testrun
	$(TESTRUN) -retries 2 long $(PACKAGES)

test-modal: deps
	CGO_ENABLED=0 go test -count=1 -timeout 50m -v -run '^TestModal' ./test/e2e/modal ./test/e2e/modalengine ./test/e2e/agent ./test/e2e/s3

# The first use compiles MinIO, which takes some minutes.
test-s3: deps
	HARVEST_TEST_MINIO="$$(CGO_ENABLED=0 go -C tools/peers/minio tool -n github.com/minio/minio)" HARVEST_TEST_TREE="$$(go env GOROOT)" HARVEST_TEST_FILES=1000000 HARVEST_TEST_AWAY=10m HARVEST_TEST_SEEDS=2000 CGO_ENABLED=0 \
	go test -count=1 -timeout 3h -v -run '^(TestOthersSeeTheSame|TestManyFilesInLittleMemory|TestAwayForLong|TestModel|TestModelEmbedded|TestModelMinIO)$$' ./internal/s3/volsync

# The first use compiles BuildKit, which takes some minutes. It needs root, and Debian's runc. HARVEST_TEST_DOCKERFILES is
# the number of random Dockerfiles, whose seeds begin with HARVEST_TEST_FIRST.
test-images:
	HARVEST_TEST_BUILDKITD="$$(CGO_ENABLED=0 go -C tools/peers/buildkit tool -n github.com/moby/buildkit/cmd/buildkitd)" \
	HARVEST_TEST_BUILDCTL="$$(CGO_ENABLED=0 go -C tools/peers/buildkit tool -n github.com/moby/buildkit/cmd/buildctl)" CGO_ENABLED=0 \
	go test -count=1 -timeout 1h -v -run '^(TestAsBuildKit|TestRandomAsBuildKit)$$' ./internal/image/dockerfile

# The programs stay in the user's cache directory. TESTS limits the tests beside the cluster, as in TESTS='-short -run TestRun'.
test-kubernetes: bin/tools/kubernetes
	bin/tools/kubernetes run go -C tools test -count=1 -timeout 30m -v ./kubernetes/...
	CGO_ENABLED=0 bin/tools/kubernetes cluster go test -count=1 -timeout 1h -v $(TESTS) ./internal/engine/kubernetes ./test/e2e/kubernetes

# Images of the pods and of the server: TAG is the beginning of their names. PUSH=-push pushes them to a registry.
image: build bin/tools/image
	@$(STEP) "build the first process of pods" $(BUILD) -ldflags "-s -w" -o bin/programs/ ./cmd/harvest/pod
	bin/tools/image pod -tag $(TAG)/pod:$(VERSION) -out bin/pod.tar $(PUSH)
	bin/tools/image server -tag $(TAG)/server:$(VERSION) -out bin/server.tar $(PUSH)

test-software: build
	tools/scripts/software

test-security: build
	tools/scripts/security

fmt:
	@unformatted=$$(gofmt -l $$(git ls-files -co --exclude-standard '*.go')); \
	if [ -n "$$unformatted" ]; then echo "gofmt -w these files:"; echo "$$unformatted"; exit 1; fi

# With the flags of build, so that what that has compiled is not compiled again.
check: export CGO_ENABLED = 0
check: export GOFLAGS = -trimpath
check: export GOGC = 400
check: fmt
	@set -e; for module in $(MODULES); do \
		$(STEP) "vet $$module" go -C $$module vet ./...; \
		$(STEP) "check go.mod of $$module" go -C $$module mod tidy -diff; done
	@$(STEP) "vet the peers" go -C tools/peers vet ./...
	@$(STEP) "vet the program release" go -C tools/release vet ./...
	@$(STEP) "test the program release" go -C tools/release test ./...
	@$(STEP) "check go.mod of the program release" go -C tools/release mod tidy -diff
	@$(STEP) "vet the tests of the Helm chart" go -C tools/chart vet ./...
	@$(STEP) "test the Helm chart" go -C tools/chart test ./...
	@$(STEP) "check go.mod of the tests of the Helm chart" go -C tools/chart mod tidy -diff
	@$(STEP) "vet the command line" go vet -tags clientonly,man ./cmd/harvest
	@set -e; for platform in $(CLIENTS); do $(STEP) "build harvest for $$platform" \
		env GOOS=$${platform%/*} GOARCH=$${platform#*/} go build -v -o /dev/null ./cmd/harvest; done
	@$(STEP) "build the command line" go build -v -tags clientonly -o /dev/null ./cmd/harvest
	@$(STEP) "check the rules of tools/lint" go -C tools test -count=1 ./lint
	@set -e; program=$$(go -C tools tool -n staticcheck); for module in $(MODULES); do \
		$(STEP) "staticcheck of $$module" env -C $$module "$$program" ./...; done
	@tools/scripts/vulncheck

vulncheck:
	@tools/scripts/vulncheck

# Unit tests count into one directory, processes of the built binary into another, which ordinary users can reach too;
# the gate sees both.
cover: deps bin/tools/testrun bin/tools/coverage
	rm -rf $(RESULTS)/cover $(RESULTS)/flaky.md && mkdir -p $(RESULTS)/cover/unit
	@set -ex; e2e=$$(mktemp -d); trap 'rm -rf "$$e2e"' EXIT; chmod 1777 "$$e2e"; \
	HARVEST_COVERDIR="$$e2e" $(TESTRUN) -cover -retries 2 -start $(START) -end $(END) -turn $(TURN) all; \
	go tool covdata textfmt -i=$(RESULTS)/cover/unit,"$$e2e" -o $(RESULTS)/cover/profile.txt
	bin/tools/coverage -min 90 -left $(RESULTS)/left.txt -exclude "$(UNCOUNTED)" $(RESULTS)/cover/profile.txt

# The program is gVisor too, and gVisor needs a static binary. BENCH is its arguments, such as BENCH="-rows P1,P2 -n 50".
bench: build
	@$(STEP) "build the benchmark" $(BUILD_TOOL) -tags keeper -ldflags "$(LDFLAGS)" -o $(CURDIR)/bin/bench ./bench
	@$(STEP) "build runsc" $(BUILD_TOOL) -ldflags "-s -w" -o $(CURDIR)/bin/runsc ./bench/runsc
	@$(STEP) "build the S3 server" $(BUILD) -ldflags "-s -w" -o bin/s3server ./test/stubs/s3server
	bin/bench $(BENCH)

clean:
	rm -rf bin dist $(RESULTS) internal/app/programs/*.zst
