#!/bin/sh
set -e
echo "installing b-local"
